"""What `compare` answers without knowing the form of K: exact curves, and where it was wrong."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks import coverage
from benchmarks.curves import UNSEEN
from cbs_lightning.fit import compare
from cbs_lightning.fit.comparison import probability_in_words
from cbs_lightning.fit.families import Pole, Scaling, Smooth
from cbs_lightning.fit.leverage import SAMPLING_ERROR, leverage
from cbs_lightning.fit.measurements import measurements
from cbs_lightning.fit.posterior import posterior
from cbs_lightning.fit.sampling import sample
from cbs_lightning.fit.scatter import TAIL, Runs, _chance_above

TWELVE = 2.0 ** np.arange(2, 14)
ADAM = [64 * 2**k for k in range(8)], [33_626, 17_204, 7_448, 3_136, 1_421, 700, 416, 364]
DIGITS = [4, 8, 16, 32, 64, 128], [1087, 480, 159, 85, 52, 38]


@pytest.fixture(autouse=True)
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def nested(b, A=100.0, B0=3.0, B1=60.0):
    return A * (b + B1) / (b - B0)


# --- the parts ------------------------------------------------------------------------------------


class Funnel:
    """Numbers with a normal prior, seen with normal noise whose size is not known: the less noise,
    the closer they are to what was seen. The second number of the scatter does nothing."""

    def __init__(self, seen):
        self.seen, self.parameters = np.asarray(seen), (len(seen), 2)

    def log_steps(self, points):
        return points

    def log_width(self, scatter):
        return math.log(0.1) + 1.2 * scatter[:, 0]

    def log_likelihood(self, points, scatter):
        noise = np.exp(self.log_width(scatter))[:, None]
        return stats.norm.logpdf(self.seen, points, noise).sum(axis=1)

    def exact(self):
        """A grid of the scatter with its probabilities, and the log of the evidence."""
        grid = np.linspace(-8, 8, 4001)
        total = np.hypot(1, np.exp(self.log_width(grid[:, None])))[:, None]
        density = stats.norm.pdf(grid) * stats.norm.pdf(self.seen, 0, total).prod(axis=1)
        evidence = np.trapezoid(density, grid)
        return grid, density / density.sum(), math.log(evidence)


def test_sampling_finds_a_known_posterior_and_its_evidence():
    """With little noise as often as there should be: moves of one length for all draws found
    hardly any of those below the first quartile, and half of the evidence."""
    model = Funnel([-1.5, 0.0, 1.5])
    points, scatter, log_evidence = sample(model, 1500)
    grid, probability, exact = model.exact()
    assert log_evidence == pytest.approx(exact, abs=0.15)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        quantile = grid[np.searchsorted(np.cumsum(probability), share)]
        assert (scatter[:, 0] < quantile).mean() == pytest.approx(share, abs=0.08)
    shrunk = (probability / (1 + np.exp(2 * model.log_width(grid[:, None])))).sum()
    assert points.mean(axis=0) == pytest.approx(shrunk * model.seen, abs=0.05)


def test_a_verdict_is_not_the_luck_of_the_draw(monkeypatch):
    """Other random numbers, the same answer: the probability was once 0.88 to 0.98 here."""
    data = measurements(TWELVE, nested(TWELVE) * np.exp(0.05 * np.cos(9 * np.arange(12))))
    found = []
    for seed in range(4):
        monkeypatch.setattr("cbs_lightning.fit.sampling.SEED", seed)
        found.append(posterior(data))
    assert np.ptp([one.probability for one in found]) < 0.06
    assert np.ptp(np.log([one.critical_batch for one in found])) < 0.06


def test_curves_are_drawn_on_one_thread(monkeypatch):
    """Two threads once took 2.5 times the processor time, waiting for each other."""
    threads = []

    def spy(*given):
        blas = [one for one in threadpool_info() if one["user_api"] == "blas"]
        threads.extend(one["num_threads"] for one in blas)
        return sample(*given)

    monkeypatch.setattr("cbs_lightning.fit.posterior.sample", spy)
    with threadpool_limits(2, user_api="blas"):
        posterior(measurements(*ADAM), curves=100)
    assert threads and set(threads) == {1}


def test_the_chance_that_a_run_goes_on_is_students():
    z = np.array([-1e30, -50.0, -2.0, 0.0, 0.5, 3.0, 100.0, 1e4])
    assert _chance_above(z) == pytest.approx(stats.t.sf(z, TAIL), rel=1e-9)
    assert _chance_above(np.array([-np.inf])) == 1.0


def test_runs_of_one_batch_size_share_its_deviation():
    """A hundred seeds that agree on missing a curve by 0.3 hardly say more than one seed does."""
    curve, noise, misfit = np.zeros((1, 1)), np.array([0.05]), np.array([0.1])
    off, on = (
        [
            Runs.of(measurements([8] * seeds, [math.exp(miss)] * seeds)).log_likelihood(
                curve, noise, misfit
            )[0]
            for seeds in (1, 100)
        ]
        for miss in (5.3, 5.0)
    )
    loss = [abs(a - b) for a, b in zip(off, on, strict=True)]
    assert loss[1] < 30 * loss[0]  # counted singly it were 100 times, and more


@pytest.mark.parametrize("family", [Scaling(4, 1024), Pole(4, 1024, 16), Smooth(4, 1024)])
def test_curves_fall_with_the_batch_size_and_only_a_formula_decides_on_a_minimum(family):
    draws = np.random.default_rng(0).standard_normal((300, family.parameters))
    sizes = np.geomspace(4, 1024, 400)
    log_steps = family.log_steps(draws, sizes)
    defined = np.isfinite(log_steps)
    falls = np.diff(np.where(defined, log_steps, 1e6), axis=1)
    assert (falls <= 1e-9).all()
    rises = np.diff(np.where(defined, log_steps + np.log(sizes), 1e6), axis=1) >= -1e-9
    if isinstance(family, Scaling):
        assert rises.all()  # K·b has no interior minimum
    elif isinstance(family, Pole):
        assert (~defined[:, 0]).any() and defined[:, sizes >= 16].all()
    else:
        assert 0.05 < (~rises).any(axis=1).mean() < 0.95


def test_known_forms_are_members_of_the_family_with_a_pole():
    """The paper's, McCandlish et al.'s, and A/(1 - √(B0/b))² of sign descent."""
    family = Pole(4, 1024, 16)
    span = math.log(16) - math.log(4 / 32)
    z_pole = stats.norm.ppf((math.log(3.0) - math.log(4 / 32)) / span)
    low, high = math.log(4 / 16), math.log(1024 * 16)
    z_B = stats.norm.ppf((math.log(3.0) - low) / (high - low))
    sharp = 0.7
    sign = [z_B, math.log(0.5) / sharp, z_pole, math.log(2.0) / sharp]
    paper = [-30.0, 0.0, z_pole, 0.0]
    b = np.array([16.0, 64.0, 256.0, 1024.0])
    found = family.log_steps(np.array([sign, paper]), b)
    exact = [-2 * np.log(1 - np.sqrt(3 / b)), np.log(b / (b - 3.0))]
    assert found[0] - found[0, -1] == pytest.approx(exact[0] - exact[0][-1], abs=1e-9)
    assert found[1] - found[1, -1] == pytest.approx(exact[1] - exact[1][-1], abs=0.02)


# --- answers that were wrong before ---------------------------------------------------------------


def test_adam_on_cifar10_has_its_minimum_where_anyone_sees_it():
    """K·b on a plateau, a dip, a rise: a shape that no formula has."""
    found = compare(*ADAM)
    assert found.probability > 0.9 and found.reason == ""
    assert 1024 / 1.2 < found.critical_batch < 2048 * 1.2
    low, high = found.interval()
    assert 512 <= low < 1200 and 1800 < high <= 4096  # 1,120 to 1,960 with 40 times the computation
    span = found.range(within=0.1)
    assert span.confidence >= 0.9 and 2048 >= span.low >= 1024 and span.high <= 2048
    assert found.formula_probability < 0.3
    K = np.array(ADAM[1])
    miss, best_miss = (np.log(one.steps(ADAM[0]) / K).std() for one in (found, found.best))
    assert miss < 0.1 < 0.18 < best_miss  # the curve meets the points, the best form does not


def test_a_form_that_fits_far_worse_does_not_win():
    found = compare(*DIGITS, {2: 26_000})
    assert found.best.model == "nested" and found.best.rms_log_error < 0.15
    assert found.by_name("iiduka").rms_log_error > 0.5
    assert found.measured.batch_size == 16
    low, high = found.interval()
    assert low <= 16 <= high and found.critical_batch > 10


def test_seeds_that_repeat_each_other_change_the_answer_a_little():
    """They once turned no minimum into one at 17.7."""
    sizes, steps = DIGITS
    once, twice = compare(sizes, steps), compare(sizes * 2, steps * 2)
    assert [one.model for one in once] == [one.model for one in twice]
    assert 0 < twice.probability - once.probability < 0.1
    assert once.critical_batch == pytest.approx(twice.critical_batch, rel=0.1)


def test_seeds_that_agree_exactly_are_no_proof_that_nothing_scatters():
    """Fifty of them once drove the noise to 1e-17, and the answer from 16 to no minimum at all."""
    sizes, steps = [4, 8, 16, 32, 64, 128], [1000, 400, 180, 100, 80, 70]
    found = compare(sizes * 50, steps * 50)
    assert found.probability > 0.95 and found.critical_batch == pytest.approx(16, rel=0.2)
    assert np.median(found.posterior.noise) > 1e-6
    many = Runs.of(measurements([8] * 300, [500] * 300))  # the odds that all are wild: 1e-510
    on_curve = many.wild_probability(many.means[None], np.array([0.1]), np.array([0.1]))
    assert on_curve == pytest.approx(0, abs=1e-99)


def test_one_wild_run_decides_little():
    steps = nested(TWELVE) * np.exp(0.05 * np.cos(9 * np.arange(12)))
    usual = compare(TWELVE, steps)
    steps[5] *= 12
    wild = compare(TWELVE, steps)
    assert usual.reason == wild.reason == ""
    assert wild.critical_batch == pytest.approx(usual.critical_batch, rel=0.25)
    sizes, steps = np.repeat(TWELVE, 3), np.repeat(nested(TWELVE), 3) * np.tile([0.95, 1, 1.05], 12)
    steps[4] *= 12  # one seed of three, beside the minimum
    assert compare(sizes, steps).critical_batch == pytest.approx(usual.critical_batch, rel=0.25)


@pytest.mark.parametrize("factor", [1 / 12, 12])
def test_a_wild_run_is_found_to_be_one(factor):
    steps = nested(TWELVE) * np.exp(0.05 * np.cos(9 * np.arange(12)))
    assert max(compare(TWELVE, steps).wild_probability.values()) < 0.25
    steps[5] *= factor
    found = compare(TWELVE, steps)
    assert found.outliers == (TWELVE[5],)
    assert max(p for b, p in found.wild_probability.items() if b != TWELVE[5]) < 0.25


@pytest.mark.parametrize("batch_sizes", [4, 5, 6])
@pytest.mark.parametrize("place", [1, 2])
def test_a_mistyped_number_does_not_move_the_curve(batch_sizes, place):
    """Its level was once sought about the mean of the runs, which one such K makes far too high."""
    sizes, steps = DIGITS[0][:batch_sizes], DIGITS[1][:batch_sizes]
    mistyped = [1000 * K if at == place else K for at, K in enumerate(steps)]
    usual, found = compare(sizes, steps), compare(sizes, mistyped)
    assert found.outliers == (sizes[place],) or batch_sizes == 4  # too few to tell
    others = [b for b in sizes if b != sizes[place]]
    assert np.abs(np.log(found.steps(others) / usual.steps(others))).max() < math.log(2)


def test_no_run_of_a_measured_curve_is_an_outlier():
    assert compare(*ADAM).outliers == compare(*DIGITS).outliers == ()
    assert max(compare(*ADAM).wild_probability.values()) < 0.1
    assert compare([], []).outliers == () and compare([], []).wild_probability == {}
    twice = compare([*DIGITS[0], 16], [*DIGITS[1], 160], {2: 26_000})
    assert list(twice.wild_probability) == DIGITS[0]  # batch sizes that reached the threshold


def test_ties_are_no_edge():
    found = compare([4, 8, 16, 32, 64], [100, 50, 25, 20, 18])  # K·b = 400, 400, 400, 640, 1152
    assert found.measured.batch_size == 16 and found.data.at_edge == ""
    assert "smallest" not in found.reason and found.critical_batch is None


def test_the_same_question_has_the_same_answer():
    first, second = compare(*ADAM), compare(*ADAM)
    assert first.interval() == second.interval() and first.probability == second.probability


# --- readings -------------------------------------------------------------------------------------


def test_open_ends_say_that_b_star_may_lie_beyond_the_runs():
    falling = compare(TWELVE[:6], 3000 * (TWELVE[:6] / 4) ** -1.3)  # K·b falls to the end
    assert falling.critical_batch is None and math.isinf(falling.interval()[1])
    assert falling.interval()[0] > 4
    rising = compare(TWELVE, 300 * (1 + 20 / TWELVE))
    low, high = rising.interval()
    assert low == 0.0 and 4 <= high < 32
    assert compare([], []).interval() == (0.0, math.inf) and compare([], []).range() is None


def test_the_range_costs_what_it_says_and_widens_with_what_it_may_cost():
    found = compare(
        np.repeat(TWELVE, 3), np.repeat(nested(TWELVE), 3) * np.tile([0.97, 1, 1.03], 12)
    )
    narrow, wide = found.range(within=0.1), found.range(within=0.5)
    assert narrow.confidence >= 0.9 and wide.confidence >= 0.9
    low, high = narrow
    assert wide.low <= low <= found.measured.batch_size <= high <= wide.high
    assert wide.high / wide.low > high / low and 16 in narrow and 4096 not in wide
    least = min(nested(b) * b for b in np.geomspace(4, 8192, 2000))
    assert all(nested(b) * b <= 1.1 * least for b in TWELVE if b in narrow)
    unsure = compare([4, 8, 16, 32], [900, 600, 210, 170]).range(within=0.01)
    assert unsure.low == unsure.high and unsure.confidence < 0.9
    for wrong in (0, -0.1, math.nan, "0.1"):
        with pytest.raises(ValueError, match="within must be"):
            found.range(within=wrong)


def test_the_prediction_band_has_room_for_a_further_run():
    rng = np.random.default_rng(5)
    curve, further = [], []
    for _ in range(8):
        steps = nested(TWELVE) * np.exp(0.1 * rng.standard_normal(12))
        found = compare(TWELVE, steps)
        again = nested(TWELVE) * np.exp(0.1 * rng.standard_normal(12))
        for band, inside in ((found.band, curve), (found.prediction_band, further)):
            low, high = band(TWELVE, 0.9)
            inside.append((low <= again) & (again <= high))
    assert np.mean(curve) < 0.8 and 0.83 <= np.mean(further) <= 0.98


def test_seeds_that_round_to_the_same_epoch_are_not_the_same():
    """The loss was looked at once an epoch: two seeds with the same K may differ by almost one."""
    sizes, steps = np.repeat(ADAM[0], 2), np.repeat(ADAM[1], 2)
    epochs = np.ceil(50_000 / sizes)
    by_step, by_epoch = compare(sizes, steps), compare(sizes, steps, rounded_to=epochs)
    assert by_epoch.data.rounding == pytest.approx(epochs / steps / 2)
    scatter = [np.median(found.posterior.noise) for found in (by_step, by_epoch)]
    assert scatter[1] > 1.2 * scatter[0]
    low, high = compare(sizes, steps, rounded_to=20 * epochs).band(ADAM[0], 0.9)
    least, most = by_step.band(ADAM[0], 0.9)
    assert (np.log(high / low) > 1.2 * np.log(most / least)).all()
    assert by_epoch.posterior.probability > 0.9
    rows = by_epoch.data.resample(np.random.default_rng(0), 500).log_steps
    spread = (rows - np.log(steps)) / by_epoch.data.rounding
    assert 0.9 < np.abs(spread).max() <= 1.0
    with pytest.raises(ValueError, match=r"^16 steps, but 2 numbers in rounded_to$"):
        compare(sizes, steps, rounded_to=[1, 2])
    with pytest.raises(ValueError, match=r"^rounded_to must be"):
        compare(sizes, steps, rounded_to=0)


def test_leverage_names_the_batch_size_that_decides():
    """Without b = 4 nothing shows that K·b rises towards small batch sizes."""
    sizes = [4, 8, 16, 32, 64, 128, 256]
    steps = np.repeat([2600, 700, 350, 210, 150, 120, 108], 3) * np.tile([0.98, 1.0, 1.02], 7)
    found = compare(np.repeat(sizes, 3), steps)
    assert found.reason == ""
    by_size = {one.batch_size: one for one in found.leverage}
    assert sorted(by_size) == sizes and 4.0 in found.decisive
    assert by_size[4].overturns and by_size[4].probability < 0.9
    assert not by_size[256].overturns
    assert found.settling_batch_size <= 8  # a run there would settle it
    assert compare([], []).leverage == ()


def test_a_batch_size_that_moves_the_answer_by_chance_does_not_decide():
    """It once did if the probability fell from 0.901 to 0.899."""
    sizes, steps = DIGITS
    data = measurements([*sizes, 256], [*steps, 30])
    found = posterior(data, curves=600)
    moved = [one.probability - found.probability for one in leverage(found, data, 0.9)]
    for change in moved:
        claim = found.probability + change / 2  # between the two
        wanted = [abs(one) > SAMPLING_ERROR and one / change > 0.5 for one in moved]
        assert [one.overturns for one in leverage(found, data, claim)] == wanted
    assert min(map(abs, moved)) < SAMPLING_ERROR < max(map(abs, moved))


def test_a_curve_is_read_at_batch_sizes_of_any_shape():
    found, table = compare(*DIGITS), np.array([[4.0, 8.0], [16.0, 32.0]])
    assert found.steps(table).shape == found.sfo(table).shape == (2, 2)
    assert found.steps(table).ravel() == pytest.approx(found.steps(table.ravel()))
    assert found.sfo(table)[1, 0] == pytest.approx(16 * found.steps(16))


def test_a_posterior_reaches_as_far_as_it_is_asked_to():
    """A search asks about batch sizes beyond those that it has run."""
    found = posterior(measurements([16], [500]), reach=(4, 256), curves=200)
    assert (found.first, found.last) == (4.0, 256.0)
    log_steps = found.log_steps([4, 16, 256])
    assert log_steps.shape == (len(found.noise), 3)
    assert np.median(log_steps[:, 1]) == pytest.approx(math.log(500), abs=0.15)
    spread = np.quantile(np.minimum(log_steps, 50), 0.9, axis=0) - np.quantile(
        log_steps, 0.1, axis=0
    )
    assert spread[1] < spread[0] and spread[1] < spread[2]


def test_one_batch_size_tells_nothing_of_b_star():
    assert compare([16, 16], [500, 520]).interval(0.9) == (0.0, math.inf)
    assert compare([16], [500]).critical_batch is None


def test_runs_that_missed_count_one_by_one_however_they_are_grouped():
    """A thousand runs with one budget are looked at as one: each was a column of its own."""
    reached = [8, 16, 32, 64], [900, 400, 250, 200]
    missed = measurements(*reached, unreached=[(4, 3000)] * 1000 + [(4, 5000)])
    runs = Runs.of(missed)
    assert runs.missed_sizes.tolist() == [4, 4] and runs.missed.tolist() == [1000, 1]
    curve, noise, misfit = np.full((1, 6), math.log(4000)), np.array([0.1]), np.array([1e-9])

    def of_missed(*steps):
        found = Runs.of(measurements(*reached, unreached=[(4, each) for each in steps]))
        return found.log_likelihood(curve[:, : len(found.all_sizes)], noise, misfit)[0]

    alone = of_missed(3000) - of_missed()
    assert of_missed(3000, 3000) - of_missed() == pytest.approx(2 * alone)
    assert of_missed(3000, 5000) - of_missed(5000) == pytest.approx(alone)


@pytest.mark.parametrize("curves", [10, 50, 100])
def test_a_few_curves_can_be_drawn(curves):
    found = posterior(measurements(*DIGITS), curves=curves)
    assert 0.5 < found.probability <= 1 and len(found.noise) <= curves + 3


# --- coverage: a smaller version of `make bench PARTS=coverage`, other draws ----------------------


@pytest.mark.parametrize(("noise", "seeds", "sweeps"), [(0.03, 3, 20), (0.25, 1, 50)])
def test_intervals_hold_b_star_and_no_minimum_is_made_up(noise, seeds, sweeps, monkeypatch):
    """What the benchmark is held to, over fewer sweeps."""
    monkeypatch.setattr(coverage, "SEED", 555)
    readings = [coverage.one(("family", noise, seeds, seed)) for seed in range(sweeps)]
    claimed = [one for one in readings if one.claimed]
    assert len(claimed) >= 0.8 * sweeps
    assert sum(one.covered for one in claimed) >= 0.85 * len(claimed)
    without = [coverage.one(("without a pole", noise, seeds, seed)) for seed in range(10)]
    assert not any(one.claimed for one in without)


@pytest.mark.parametrize(
    ("name", "sweeps"),
    [
        ("noisy quadratic", 30),
        ("nested", 10),
        ("plateau, dip, rise", 20),
        (coverage.BY_EPOCH, 10),
    ],
)
def test_intervals_hold_b_star_on_other_curves(name, sweeps, monkeypatch):
    """As often as 90 % intervals do in all but one of a hundred such tests."""
    monkeypatch.setattr(coverage, "SEED", 556)
    readings = [coverage.one((name, 0.05, 3, seed)) for seed in range(sweeps)]
    claimed = [one for one in readings if one.claimed]
    assert len(claimed) >= 0.3 * sweeps
    assert sum(one.covered for one in claimed) >= stats.binom.ppf(0.01, len(claimed), 0.9)


@pytest.mark.parametrize("name", UNSEEN)
def test_families_that_nothing_was_chosen_on_are_not_answered_wrongly(name, monkeypatch):
    monkeypatch.setattr(coverage, "UNSEEN_SEED", 557)
    readings = [coverage.one((name, 0.1, 3, seed)) for seed in range(4)]
    wrong = [one for one in readings if one.claimed and not one.covered]
    missed = [one for one in readings if one.range_holds is False]
    assert len(wrong) <= 1 and len(missed) <= 1
    assert UNSEEN[name][1] or not wrong


def test_a_probability_below_a_claim_is_not_printed_as_enough():
    assert probability_in_words(0.8962) == "0.896" and probability_in_words(0.89996) == "0.89996"
    assert probability_in_words(0.9) == "0.90" and probability_in_words(0.894) == "0.89"
    assert probability_in_words(0.001) == "below 0.01" and probability_in_words(1) == "above 0.99"
