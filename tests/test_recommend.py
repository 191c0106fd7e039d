"""From measured curves to an answer: three batch sizes, intervals, and what is not known."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from cbs_lightning.analysis.conditions import describe_seconds
from cbs_lightning.analysis.curves import BatchSizePoint, Curve, curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import CheapRange
from cbs_lightning.analysis.study import read
from cbs_lightning.analysis.thresholds import across_thresholds
from cbs_lightning.fit.comparison import probability_in_words
from cbs_lightning.fit.joint import joint_fit
from cbs_lightning.fit.measurements import measurements
from cbs_lightning.fit.minimum import measured_minimum
from cbs_lightning.reporting.figures import draw_by_threshold
from cbs_lightning.reporting.recommendation_file import write_recommendations
from cbs_lightning.results.result import Request, Result, Status, tell_apart
from cbs_lightning.results.trajectory import RuleName
from cbs_lightning.theory import constants
from tests.studies import make_run

SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
DATA_SIZE = 100_000


@pytest.fixture(scope="module")
def pattern(tmp_path_factory) -> Result:
    result = make_run(tmp_path_factory.mktemp("runs") / "study", "adam", 8, 2)
    return replace(result, data_size=DATA_SIZE, window=1)


def made_curve(pattern, cells, threshold=0.1, variant="adam", seconds=lambda b: b**0.3) -> Curve:
    """Of {batch size: steps of each seed}; a negative number is of steps run in vain."""
    points = []
    for b, counts in cells.items():
        runs = tuple(
            replace(
                pattern,
                variant=variant,
                batch_size=b,
                effective_batch_size=b,
                seed=seed,
                threshold=threshold,
                rule=RuleName.WINDOW,
                status=Status.REACHED if steps > 0 else Status.EXHAUSTED,
                steps=steps if steps > 0 else None,
                sfo=steps * b if steps > 0 else None,
                steps_run=abs(steps),
                seconds_per_step=1e-3 * seconds(b),
                seconds=1e-3 * seconds(b) * abs(steps),
            )
            for seed, steps in enumerate(counts)
        )
        points.append(BatchSizePoint(b, runs))
    return Curve(variant, "adam", threshold, RuleName.WINDOW, tuple(points))


def nested(b, A=100.0, B0=3.0, B1=60.0):
    return A * (b + B1) / (b - B0)


def seeds_of(rng, steps, noise=0.04, count=3):
    return [round(steps * math.exp(noise * rng.standard_normal())) for _ in range(count)]


@pytest.fixture
def curve(pattern) -> Curve:
    rng = np.random.default_rng(0)
    return made_curve(pattern, {b: seeds_of(rng, nested(b)) for b in SIZES})


def test_the_three_batch_sizes_and_what_they_cost(curve):
    found = recommend(curve)
    medians = {point.batch_size: point for point in curve.points}
    sfo = {b: point.sfo for b, point in medians.items()}
    least = min(sfo, key=sfo.__getitem__)
    assert found.least_sfo.batch_size == least == 16
    assert found.least_sfo.sfo == sfo[least] and found.least_sfo.steps == medians[least].steps
    assert (found.least_sfo.sfo_ratio, found.least_sfo.speedup) == (1, 1)
    fastest = min(medians, key=lambda b: medians[b].seconds)
    assert found.fastest.batch_size == fastest == 128
    assert found.fastest.speedup == medians[least].seconds / medians[fastest].seconds
    assert found.fastest.sfo_ratio == sfo[fastest] / sfo[least]
    largest = max(b for b in sfo if sfo[b] <= 1.2 * sfo[least])
    assert found.largest_within_overhead.batch_size == largest
    low, high = curve.comparison.interval()
    assert low < 3 + math.sqrt(9 + 180) < high < 3 * low  # b* of the exact curve
    assert low < found.critical_batch < high
    low, high = found.fits[0].interval
    assert low < 3 + math.sqrt(9 + 180) < high
    assert found.interval == curve.comparison.interval()
    assert not any(not caveat.startswith("Run next") for caveat in found.caveats)


def test_the_sentences(curve):
    found = recommend(curve)
    _, costs, speed, largest, minimum, *_ = found.summary_lines()
    least, cheap = found.least_sfo, found.range
    assert cheap.low <= 16 <= cheap.high and cheap.within == 0.1
    wide = recommend(curve, within=0.5).range
    assert wide.low <= cheap.low <= cheap.high <= wide.high and wide.within == 0.5
    assert costs.startswith(
        f"  - Fewest gradients: b = 16, K·b = {least.sfo:,.0f} in {least.steps:,.0f} steps, "
    )
    assert "(24 runs, 3 seeds)." in costs
    assert f"b = 128 trains {found.fastest.speedup:.1f} times as fast, for " in speed
    assert f"K·b = {found.fastest.sfo:,.0f} in {found.fastest.steps:,.0f} steps" in speed
    assert " is the largest within 20 % of the least, for " in largest
    low, high = found.interval
    assert minimum == (
        f"  - b* = {found.critical_batch:.0f}, 90 % interval {low:.0f} to {high:.0f}; the "
        "probability of a minimum inside these batch sizes is above 0.99."
    )


def test_times_that_cannot_be_compared_give_no_advice(curve):
    """The answer once said how much faster a batch size was where figures said that none can be."""
    points = tuple(
        BatchSizePoint(p.batch_size, tuple(replace(run, waited=0.4) for run in p.runs))
        for p in curve.points
    )
    busy = replace(curve, points=points)
    assert busy.fastest is not None
    found = recommend(busy)
    reason = "not comparable: 24 of 24 runs waited for a core"
    assert found.fastest is None and found.seconds_caveat == reason
    text = " ".join(found.summary_lines())
    assert "fast" not in text
    assert f"K·b = {found.least_sfo.sfo:,.0f} in {found.least_sfo.steps:,.0f} steps (24" in text
    assert describe_seconds([curve]) == ""
    assert describe_seconds([busy, busy]) == (
        "Wall-clock times are not comparable: 48 of 48 runs waited for a core."
    )
    assert describe_seconds([curve, busy]).startswith("Wall-clock times of adam are not comparable")


def test_the_sentence_of_the_range(curve):
    """A range of several batch sizes, one of a single batch size, one that is not sure."""
    found = recommend(curve)

    def says(cheap, wider=None) -> str:
        return replace(found, range=cheap, wider_range=wider).summary_lines()[0]

    several, one = CheapRange(8, 64, 0.1, 0.934), CheapRange(16, 16, 0.1, 0.9999)
    wider = CheapRange(16, 32, 0.2, 0.96)
    assert says(several) == (
        "adam: use b = 16; b from 8 to 64 costs at most 10 % more gradients (93 % sure)."
    )
    assert says(one, wider) == (
        "adam: use b = 16; b from 16 to 32 costs at most 20 % more gradients (96 % sure), "
        "b = 16 itself at most 10 % (99 % sure)."
    )
    assert says(one) == (
        "adam: use b = 16, which costs at most 10 % more gradients than the least (99 % sure)."
    )
    assert says(replace(one, confidence=0.62)) == (
        "adam: use b = 16 for now, which probably costs at most 10 % more gradients than the least "
        "(62 % sure)."
    )
    assert says(replace(several, confidence=0.62)) == (
        "adam: use b = 16 for now; b from 8 to 64 costs at most 10 % more gradients (62 % sure)."
    )
    assert says(replace(several, high=16, confidence=0.7), wider) == (
        "adam: use b = 16; b from 8 to 16 costs at most 10 % more gradients (70 % sure); "
        "b from 16 to 32 costs at most 20 % more gradients (96 % sure)."
    )


def test_the_runs_that_an_answer_rests_on(pattern):
    found = recommend(made_curve(pattern, {8: [100, 90], 16: [60, -70], 32: [50, 51]}))
    assert [(run.batch_size, run.seed, run.status) for run in found.runs] == [
        (8, 0, "reached"), (8, 1, "reached"), (16, 0, "reached"), (16, 1, "exhausted"),
        (32, 0, "reached"), (32, 1, "reached"),
    ]  # fmt: skip


# Adam on CIFAR-10, to 0.1: K·b stays level, falls and rises, which no formula describes.
CIFAR10 = {
    b: [k]
    for b, k in zip(
        (64, 128, 256, 512, 1024, 2048, 4096, 8192),
        (33_626, 17_204, 7_448, 3_136, 1_421, 700, 416, 364),
        strict=True,
    )
}


def test_a_curve_that_no_formula_fits_is_said_to_be_one(pattern):
    found = recommend(made_curve(pattern, CIFAR10))
    assert found.least_sfo.batch_size == 2048
    assert (found.range.low, found.range.high) == (1024, 2048) and found.range.confidence >= 0.9
    assert found.formula_probability < 0.1
    text = " ".join(found.summary_lines())
    assert found.fastest.batch_size == found.largest_within_overhead.batch_size == 4096
    assert text.count("K·b = 1,703,936") == 1  # its cost is told once
    assert "b = 4096 is also the largest within 20 % of the least." in text
    assert (
        f"No formula fits these runs (probability "
        f"{probability_in_words(found.formula_probability)}): the curve assumes none." in text
    )
    assert found.refutes_formulas
    assert 512 < found.interval[0] < 1200 and 1800 < found.interval[1] < 4096
    assert 1024 < found.critical_batch < 2048 and found.probability > 0.95


@pytest.mark.parametrize("sizes", [2, 4])
def test_a_few_runs_do_not_speak_against_formulas(pattern, sizes):
    """Two points once said that no formula fits them, since its prior probability is 0.35."""
    cells = {b: [2000 // b] for b in SIZES[:sizes]}
    found = recommend(made_curve(pattern, cells))
    assert not found.refutes_formulas
    assert "No formula" not in " ".join(found.summary_lines())


def test_a_batch_size_that_alone_decides_is_named(pattern):
    curve = made_curve(pattern, {b: [round(nested(b))] for b in SIZES})
    found = recommend(curve)

    def minimum(decisive, **changed) -> str:
        changed_answer = replace(found, decisive=decisive, **changed)
        (line,) = [e for e in changed_answer.details() if "minimum inside" in e]
        return line

    assert found.critical_batch is not None
    assert minimum((4,)).endswith(" Without b = 4 no b* would be claimed.")
    assert minimum((4, 8, 16)).endswith(" Without b = 4, 8 or 16 no b* would be claimed.")
    most = minimum(SIZES[1:])
    assert most.endswith(" Without any one of most batch sizes no b* would be claimed.")
    none = minimum((4,), critical_batch=None)
    assert none.endswith(" Without b = 4 a b* would be claimed.")
    assert recommend(curve, leverage=False).decisive == ()


def test_nothing_sure_is_no_recommendation(pattern):
    """One K far below its neighbours' was once recommended as a fact, 1 % sure."""
    cells = {8: [5000], 16: [1000], 32: [900], 64: [60], 128: [300]}
    found = recommend(made_curve(pattern, cells))
    assert found.is_unknown and found.next_batch_size is not None
    first, *others = found.summary_lines()
    assert first == "adam: the runs do not tell yet; b = 64 had the least K·b, in one run."
    assert others[-1].startswith("  - Run next: batch_size=")
    assert "The best guess so far: b = 64 costs at most 10 % more gradients (" in " ".join(others)
    twice = replace(found, runs=(*found.runs, found.runs[3]))
    assert twice.headline().endswith("b = 64 had the least K·b, in the median of 2 runs.")


REGULAR = dict(zip(SIZES, (6708, 1289, 605, 321, 199, 152, 122, 107), strict=True))


@pytest.mark.parametrize("size", [4, 32])  # at the edge, and beside the minimum
def test_a_best_batch_size_that_is_an_outlier_is_not_recommended(pattern, size):
    """K/12 was once recommended: `use b = 4; b from 4 to 16 costs at most 50 % more (90 % sure)`,
    where b = 4 costs 26,832 and others 9,680."""
    cells = {b: [k // 12 if b == size else k] for b, k in REGULAR.items()}
    found = recommend(made_curve(pattern, cells), leverage=False)
    assert found.least_sfo.batch_size == size and found.outliers == (size,)
    first, *others = found.summary_lines()
    assert first == f"adam: the runs do not tell yet; b = {size} had the least K·b, in one run."
    text = " ".join(others)
    assert f"b = {size} is far off the curve of the others, so it may be an outlier." in text
    assert others[-1] == f"  - Run next: batch_size={size} with another seed."
    assert found.next_batch_size == size and "% sure" not in text
    assert not found.is_sure and not found.range.is_sure and found.wider_range is None


def test_another_outlier_is_named_and_run_again_before_anything_else(pattern):
    """Next was once the batch size beyond an edge."""
    cells = {b: [k * 12 if b == 32 else k] for b, k in REGULAR.items()}
    found = recommend(made_curve(pattern, cells), leverage=False)
    assert found.least_sfo.batch_size == 16 and found.outliers == (32,)
    assert found.headline().startswith("adam: use b = 16")
    assert found.caveats[-1] == "Run next: batch_size=32 with another seed."
    steps = {b: [(500 * (12 if b == 64 else 1))] for b in SIZES}
    found = recommend(made_curve(pattern, steps), leverage=False)
    assert found.least_sfo.batch_size == 4 and found.next_batch_size == 64
    assert "b = 4 is the smallest tried: b* may be smaller still." in found.caveats


@pytest.mark.parametrize("cells", ["REGULAR", "CIFAR10", "few", "agreeing seeds"])
def test_runs_on_a_curve_are_no_outliers(pattern, cells):
    """Nor are seeds that agree, though one of them alone would be: runs go wrong one by one."""
    agreeing = {b: [k] for b, k in REGULAR.items()} | {4: [1000, 990]}
    alone = recommend(made_curve(pattern, agreeing | {4: [1000]}), leverage=False)
    assert alone.outliers == (4,)
    cells = {
        "REGULAR": {b: [k] for b, k in REGULAR.items()},
        "CIFAR10": CIFAR10,
        "few": {8: [5000], 16: [100]},
        "agreeing seeds": agreeing,
    }[cells]
    found = recommend(made_curve(pattern, cells), leverage=False)
    assert found.outliers == () and "outlier" not in " ".join(found.summary_lines())


@pytest.mark.parametrize(
    ("cells", "says", "following"),
    [
        ({b: [500] for b in SIZES}, "b = 4 is the smallest tried: b* may be smaller", 2),
        ({b: [10**6 // b**2] for b in SIZES}, "b = 512 is the largest tried", 1024),
        ({4: [900], 64: [20], 1024: [18]}, "Run next: batch_size=256.", 256),
        ({8: [100], 16: [40]}, "Only 2 batch sizes reached it: too few for a curve.", 32),
        ({4: [-90], 8: [100], 16: [60], 32: [50]}, "b = 4 stopped at an SFO of 360, too soon", 4),
        ({4: [-90], 8: [100], 16: [60]}, "batch_size=4 with a larger stop.max_epochs or stop", 4),
        ({8: [100], 16: [50], 32: [40], 64: [-9999]}, "The same SFO: b = 8, 16.", 4),
        ({4: [-9999], 8: [100], 16: [60]}, "Not reached at b = 4.", 32),
        ({4: [-9999, 300], 8: [100, 99], 16: [52, 51]}, "at b = 4 (1 of 2 seeds).", 32),
        ({8: [100], 16: [60], 32: [45]}, "Only one seed. Add seed=0,1,2 to see how", 4),
    ],
)
def test_what_is_not_known_and_what_to_run_next(pattern, cells, says, following):
    found = recommend(made_curve(pattern, cells))
    assert says in " ".join(found.caveats)
    assert found.next_batch_size == following


def test_edges_that_are_none(pattern):
    """Smaller than 1, or larger than the data set, there is nothing to run."""
    found = recommend(made_curve(pattern, {1: [100], 2: [90], 4: [80], 8: [79]}))
    assert found.least_sfo.batch_size == 1 and found.next_batch_size is None
    assert found.interval[0] == 1
    whole = made_curve(pattern, {DATA_SIZE // 4: [100], DATA_SIZE // 2: [30], DATA_SIZE: [10]})
    found = recommend(whole)
    assert found.least_sfo.batch_size == DATA_SIZE and found.interval[1] <= DATA_SIZE
    assert found.next_batch_size is None or found.next_batch_size <= DATA_SIZE


def test_an_interval_is_open_where_nothing_was_run(pattern):
    rng = np.random.default_rng(0)
    rising = {b: seeds_of(rng, 500) for b in SIZES}
    low, high = recommend(made_curve(pattern, rising)).interval
    assert low == 0 and 4 <= high < 8
    falling = {b: seeds_of(rng, 10**7 / b**2) for b in SIZES}
    low, high = recommend(made_curve(pattern, falling)).interval
    assert 256 < low <= 512 and high == math.inf
    found = recommend(made_curve(pattern, rising)).summary_lines()
    assert "If there is one, it is below 4 (90 %)." in " ".join(found)


def test_nothing_reached_and_one_batch_size(pattern):
    line, *others = recommend(made_curve(pattern, {4: [-100], 8: [-50]})).summary_lines()
    assert line == "adam: no run reached 0.1 (b = 4, 8)."
    assert others[-1].startswith("  - A looser stop.loss is answered at once; a larger stop.max_")
    (line,) = recommend(made_curve(pattern, {4: [100, -100]})).summary_lines()
    assert line == "adam: at no batch size did all seeds reach 0.1 (b = 4)."
    (line,) = recommend(made_curve(pattern, {8: [100]})).summary_lines()
    assert line.startswith("adam: only b = 8 was run, K·b = 800 in 100 steps")


def test_a_run_that_diverged_is_not_to_be_run_longer(pattern):
    curve = made_curve(pattern, {4: [-9], 8: [100], 16: [60], 32: [50]})
    diverged = tuple(replace(run, status=Status.DIVERGED) for run in curve.points[0].runs)
    found = recommend(replace(curve, points=(BatchSizePoint(4, diverged), *curve.points[1:])))
    assert "Diverged at b = 4." in found.caveats
    assert found.caveats[-1] == "Run next: batch_size=8 with another seed."


def test_runs_that_all_diverged_are_not_to_be_run_longer_either(pattern):
    curve = made_curve(pattern, {4: [-9], 8: [-5]})
    points = tuple(
        BatchSizePoint(p.batch_size, tuple(replace(r, status=Status.DIVERGED) for r in p.runs))
        for p in curve.points
    )
    (line,) = recommend(replace(curve, points=points)).summary_lines()
    assert line.startswith("adam: every run diverged (b = 4, 8): more training will not help")
    lines = recommend(replace(curve, points=(points[0], curve.points[1]))).summary_lines()
    assert lines[:2] == ["adam: no run reached 0.1 (b = 4, 8).", "  - Diverged at b = 4."]


def test_runs_that_a_search_gave_up_need_no_larger_budget(pattern):
    """A learning rate that loses its race may have no other runs."""
    curve = made_curve(pattern, {4: [-9], 8: [-5]})
    points = tuple(
        BatchSizePoint(p.batch_size, tuple(replace(r, status=Status.ABANDONED) for r in p.runs))
        for p in curve.points
    )
    assert recommend(replace(curve, points=points)).summary_lines() == [
        "adam: no run reached 0.1 (b = 4, 8).",
        "  - The search abandoned these runs: others took fewer gradients.",
    ]


def test_runs_with_another_budget_are_named(pattern):
    def budget(run, epochs):
        return replace(run, configuration={"stop": {"max_epochs": epochs, "max_steps": None}})

    curve = made_curve(pattern, {4: [90], 8: [100], 16: [60], 32: [-500]})
    same = [BatchSizePoint(p.batch_size, (budget(p.runs[0], 30),)) for p in curve.points]
    text = " ".join(recommend(replace(curve, points=tuple(same))).caveats)
    assert "budget" not in text
    longer = BatchSizePoint(16, (budget(curve.points[2].runs[0], 200),))
    mixed = replace(curve, points=(*same[:2], longer, same[3]))
    text = " ".join(recommend(mixed).caveats)
    assert (
        "Not all runs had the same budget: 30 epochs at b = 4, 8, 32; 200 epochs at b = 16." in text
    )


@pytest.mark.parametrize(
    ("rule", "stop", "says"),
    [
        ("epoch", {"max_epochs": 200, "max_steps": 2}, "raise stop.max_steps."),
        ("window", {"max_epochs": 1, "max_steps": None}, "raise stop.max_epochs."),
        ("window", {"max_epochs": 1, "max_steps": 10**6}, "raise stop.max_epochs."),
        ("epoch", None, "raise max_epochs or max_steps of the Trainer."),
    ],
)
def test_the_budget_that_ended_the_runs_is_the_one_to_raise(pattern, rule, stop, says):
    """Runs that stop.max_steps ended were once to get a larger stop.max_epochs."""
    curve = made_curve(pattern, {8: [-2], 16: [-2]})
    name, configuration = RuleName(rule), {"stop": stop} if stop else {"model": "Net"}
    changed = {"rule": name, "window": 5000, "configuration": configuration}
    points = tuple(
        BatchSizePoint(p.batch_size, tuple(replace(run, **changed) for run in p.runs))
        for p in curve.points
    )
    *_, last = recommend(replace(curve, rule=name, points=points)).summary_lines()
    did = "finished an epoch" if rule == "epoch" else "saw 5,000 samples"
    assert last == f"  - No run {did}, so rule {rule} has no loss to compare; {says}"


def test_advice_for_a_trainer_of_ones_own_names_no_keys(pattern):
    """The callback's runs were once told to use seed=0,1,2 and batch_size=8."""

    def without_keys(cells, seed=None):
        curve = made_curve(pattern, cells)
        points = tuple(
            BatchSizePoint(
                p.batch_size,
                tuple(replace(r, seed=seed, configuration={"model": "Net"}) for r in p.runs),
            )
            for p in curve.points
        )
        return recommend(replace(curve, points=points))

    found = without_keys({16: [100], 32: [60], 64: [50]})
    text = " ".join(found.summary_lines())
    assert "(3 runs, unseeded)" in text and found.seeds == (None,)
    assert "Each batch size was run only once. Repeat the runs with other seeds" in text
    assert text.endswith("Run next: b = 8.")
    text += " ".join(without_keys({4: [-9], 8: [-9]}).summary_lines())
    assert "A looser threshold (LOSS) is answered at once" in text
    assert not re.search(r"stop\.|seed=|batch_size=|optimizer\.", text)
    twice = without_keys({16: [100, 90], 32: [60, 61], 64: [50, 52]})
    assert "only once" not in " ".join(twice.caveats)  # unseeded runs are runs of their own
    assert len(made_curve(pattern, {8: [9, 8]}).measurements().reached) == 2


def test_runs_without_a_seed_are_measurements_of_their_own(pattern):
    curve = made_curve(pattern, {8: [100, 90, 95]})
    runs = tuple(replace(run, seed=None) for run in curve.points[0].runs)
    unseeded = replace(curve, points=(BatchSizePoint(8, runs),))
    assert list(unseeded.measurements().reached) == [8, 8, 8]


def test_k_by_the_epoch_is_known_to_an_epoch(pattern):
    """What a fit takes two seeds with the same K for."""
    curve = made_curve(pattern, {8: [900, 900], 16: [500], 32: [-400]})
    assert list(curve.measurements().rounded_to) == [1, 1, 1, 1]
    runs = [
        replace(run, rule=RuleName.EPOCH, steps_per_epoch=800 // run.batch_size)
        for run in curve.runs
    ]
    (by_epoch,) = curves(runs)
    assert list(by_epoch.measurements().rounded_to[:3]) == [100, 100, 50]


def test_answers_to_several_requests_say_which(pattern):
    asked = [Request(0.1, "window", 450), Request(0.2, "window", 450), Request(0.1, "epoch", 9)]
    assert list(tell_apart(asked).values()) == [
        "loss <= 0.1, rule window over 450 samples",
        "loss <= 0.2, rule window over 450 samples",
        "loss <= 0.1, rule epoch",
    ]
    assert list(tell_apart(asked[:1]).values()) == [""]
    windows = [Request(0.1, "middle", 450), Request(0.1, "middle", 900)]
    assert list(tell_apart(windows).values()) == [
        "rule middle over 450 samples",
        "rule middle over 900 samples",
    ]
    found = recommend(made_curve(pattern, {8: [100], 16: [60]}))
    assert found.summary_lines("loss <= 0.1")[0].startswith("adam (loss <= 0.1): use b = 8")


def test_runs_with_other_windows_are_other_curves(pattern):
    curve = made_curve(pattern, {8: [100], 16: [60]})
    runs = [run for point in curve.points for run in point.runs]
    other = [replace(run, window=500) for run in runs]
    assert [one.request.window for one in curves([*runs, *other])] == [1, 500]
    by_epoch = [replace(run, rule=RuleName.EPOCH) for run in (*runs, *other)]
    assert len(curves(by_epoch)) == 1  # which has no window


def test_what_rule_epoch_cannot_tell_apart(pattern):
    curve = made_curve(pattern, {32: [64], 64: [32], 128: [24], 256: [18]})
    points = []
    for point, per_epoch in zip(curve.points, (32, 16, 8, 4), strict=True):
        runs = (replace(run, rule=RuleName.EPOCH, steps_per_epoch=per_epoch) for run in point.runs)
        points.append(BatchSizePoint(point.batch_size, tuple(runs)))
    found = recommend(replace(curve, rule=RuleName.EPOCH, points=tuple(points)))
    assert "b = 32, 64 all took 2 epochs; rule epoch cannot tell them apart" in " ".join(
        found.caveats
    )


def test_the_recommended_batch_size_is_in_its_range_and_ties_go_to_the_larger(pattern):
    cells = {4: [450] * 3, 8: [225] * 3, 16: [130] * 3, 32: [90] * 3}
    found = recommend(made_curve(pattern, cells))
    assert found.least_sfo.batch_size == 8 and found.range.low <= 8 <= found.range.high
    assert "The same SFO: b = 4, 8." in found.caveats


def test_batch_sizes_beyond_the_data_set_are_one(pattern):
    cells = {25_000: [40, 41], 50_000: [30, 29], 100_000: [10, 10], 131_072: [10, 10]}
    curve = made_curve(pattern, cells)
    runs = tuple(
        replace(r, effective_batch_size=DATA_SIZE, sfo=10**6) for r in curve.points[3].runs
    )
    found = recommend(replace(curve, points=(*curve.points[:3], BatchSizePoint(131_072, runs))))
    assert found.least_sfo.batch_size == found.largest_within_overhead.batch_size == DATA_SIZE
    text = " ".join(found.caveats)
    assert "The same SFO" not in text
    assert found.range.high == DATA_SIZE and found.interval[1] <= DATA_SIZE
    assert "b = 131072: the whole data set, 100,000." in text


def test_one_rule_for_text_and_json_where_runs_are_few(pattern):
    found = recommend(made_curve(pattern, {4: [1000], 8: [510], 16: [260], 32: [135]}))
    assert found.critical_batch is None
    (line,) = [line for line in found.summary_lines() if "No b* claimed" in line]
    assert line.startswith("  - No b* claimed: the probability of a minimum inside these batch")
    assert "(0.9 is needed)." in line and "too few to choose a form" in found.no_interior_minimum


def test_a_first_reading_is_told(pattern):
    curve = made_curve(pattern, {4: [250, 251], 8: [120, 119], 16: [100, 99], 32: [90, 91]})
    points = tuple(
        BatchSizePoint(p.batch_size, tuple(replace(run, window=960) for run in p.runs))
        for p in curve.points
    )
    found = recommend(replace(curve, points=points))
    text = " ".join(found.caveats)
    said = "b = 8 met the threshold at the rule's first reading, so K may be smaller there; "
    assert f"{said}a smaller stop.window would show it." in text


def test_a_first_epoch_is_no_matter_of_the_window(pattern):
    curve = made_curve(pattern, {4: [250], 8: [100], 16: [100], 32: [90]})
    points = tuple(
        BatchSizePoint(
            p.batch_size,
            tuple(replace(run, rule=RuleName.EPOCH, steps_per_epoch=100) for run in p.runs),
        )
        for p in curve.points
    )
    found = recommend(replace(curve, rule=RuleName.EPOCH, points=points))
    assert "; stop.rule=window with a smaller stop.window would show it." in " ".join(found.caveats)


def test_the_measured_minimum_and_its_interval():
    clear = measurements([4, 8, 16] * 3, [1000, 300, 290, 1010, 310, 280, 990, 305, 285])
    found = measured_minimum(clear)
    assert (found.batch_size, found.interval) == (8, (8, 8))
    assert found.sfo == pytest.approx(305 * 8)
    close = measurements([4, 8, 16] * 3, [500, 251, 128, 520, 245, 120, 480, 262, 127])
    assert measured_minimum(close).interval[0] < measured_minimum(close).interval[1]
    single = measurements([4, 8, 16], [500, 251, 126])
    assert measured_minimum(single).interval is None
    assert measured_minimum(single, noise=0.05).interval == (4, 16)
    assert measured_minimum(single, noise=1e-9).interval == (4, 4)
    assert measured_minimum(measurements([], [], [4])) is None
    some = measurements([4, 8, 8], [100, 90, 80], [(4, 1000)])  # one seed at b = 4 in vain
    assert measured_minimum(some).batch_size == 8


def test_the_measured_minimum_covers():
    """In 200 noisy sweeps the interval holds the batch size with the least true K·b."""
    rng = np.random.default_rng(0)
    sizes = np.repeat([4.0, 8.0, 16.0, 32.0, 64.0], 3)
    exact = min(sizes, key=lambda b: nested(b, 300, 3.0, 20.0) * b)
    covered = 0
    for _ in range(200):
        steps = np.round(nested(sizes, 300, 3.0, 20.0) * np.exp(0.05 * rng.standard_normal(15)))
        low, high = measured_minimum(measurements(sizes, steps)).interval
        covered += low <= exact <= high
    assert covered >= 0.9 * 200


# --- several thresholds ---------------------------------------------------------------------------

THRESHOLDS = (1.0, 0.5, 0.2, 0.1)


def by_theorem(c1, c2, c3, noise=0.03, power=1.0):
    """Measurements of the theorem's K at every threshold, with ε the threshold to a power."""
    rng = np.random.default_rng(0)
    sizes = np.repeat(2.0 ** np.arange(2, 12), 3)
    found = {}
    for threshold in THRESHOLDS:
        room = (threshold**power - c3) * sizes - c2
        reached = room > 0
        steps = c1 * sizes[reached] / room[reached]
        scatter = np.exp(noise * rng.standard_normal(len(steps)))
        missed = [(b, 10**6) for b in sizes[~reached]]
        found[threshold] = measurements(sizes[reached], np.round(steps * scatter), missed)
    return found


def test_the_theorems_constants_from_several_thresholds():
    found = joint_fit(by_theorem(500.0, 0.4, -0.1))
    assert (found.c1, found.c2, found.c3) == pytest.approx((500, 0.4, -0.1), rel=0.05)
    assert not found.contradicted
    assert found.critical_batch(0.3) == pytest.approx(2 * 0.4 / 0.4, rel=0.05)
    assert "jointly almost as well as one by one" in found.describe()
    # the same as the theory module's
    c = constants("sgd", lr=0.01, sigma2=80.0, G=0.01, dist=math.sqrt(10.0))
    found = joint_fit(by_theorem(c.c1, c.c2, c.c3, noise=0.0))
    assert found.critical_batch(0.2) == pytest.approx(c.critical_batch(0.2), rel=0.02)


def test_data_that_contradict_the_theorem_are_said_to():
    found = joint_fit(by_theorem(500.0, 0.4, -0.1, power=0.25))
    assert found.contradicted and not found.form_contradicted
    assert "does not describe thresholds 1, 0.5, 0.2, 0.1 jointly" in found.describe()
    rng = np.random.default_rng(0)
    sizes = np.repeat(2.0 ** np.arange(2, 12), 3)
    other = {
        threshold: measurements(
            sizes, nested(sizes, 100 / threshold, 0.5, 900.0) * np.exp(0.03 * rng.normal(size=30))
        )
        for threshold in THRESHOLDS
    }
    found = joint_fit(other)
    assert found.form_contradicted and found.contradicted
    assert "does not describe thresholds 1, 0.5, 0.2, 0.1 even one by one" in found.describe()


def test_two_thresholds_or_few_runs_are_too_little_to_test():
    found = joint_fit({t: data for t, data in by_theorem(500.0, 0.4, -0.1).items() if t < 0.5})
    assert not found.testable and "too little to test" in found.describe()


def test_too_few_thresholds():
    found = joint_fit({0.1: measurements([4, 8, 16, 32, 64], [50, 40, 30, 25, 24])})
    assert found.critical_batch(0.1) is None and not found.contradicted
    assert "cannot be told: fewer than two thresholds" in found.describe()


def thresholds_study(pattern, c1=500.0, c2=3.0, c3=-0.1) -> list[Result]:
    rng = np.random.default_rng(0)
    results = []
    for threshold in THRESHOLDS:
        cells = {}
        for b in SIZES:
            room = (threshold - c3) * b - c2
            cells[b] = seeds_of(rng, c1 * b / room, 0.03) if room > 0 else [-(10**6)] * 3
        curve = made_curve(pattern, cells, threshold)
        results += [run for point in curve.points for run in point.runs]
    return results


def test_b_star_across_thresholds(pattern):
    (found,) = across_thresholds(thresholds_study(pattern))
    assert [one.threshold for one in found.at] == list(THRESHOLDS)
    for one in found.at:
        assert one.critical_batch is None or one.critical_batch == pytest.approx(
            6.0 / (one.threshold + 0.1), rel=0.1
        )
    assert sum(one.critical_batch is not None for one in found.at) >= 3
    assert not found.joint.contradicted
    figure = draw_by_threshold("made up", [found])
    axes = figure.axes[0]
    lines = {tuple(line.get_ydata()) for line in axes.get_lines()}
    assert tuple(one.least_sfo.batch_size for one in found.at) in lines
    labels = [text.get_text() for text in figure.legends[1].get_texts()]
    assert "theorem, all thresholds together" in labels
    assert draw_by_threshold("made up", []) is None


@pytest.mark.parametrize("optimizer", ["lion", "muon", "adamw", "mine"])
def test_the_theorem_is_not_fitted_to_other_optimizers(pattern, tmp_path, optimizer):
    """However well it would fit."""
    results = [
        replace(run, optimizer=optimizer, variant=optimizer) for run in thresholds_study(pattern)
    ]
    (found,) = across_thresholds(results)
    assert found.joint is None and [one.threshold for one in found.at] == list(THRESHOLDS)
    told = found.as_json()
    assert [told[key] for key in ("c1", "c2", "c3", "contradicted", "says")] == [None] * 5
    figure = draw_by_threshold("made up", [found])
    labels = [text.get_text() for text in figure.legends[1].get_texts()]
    assert "theorem, all thresholds together" not in labels
    write_recommendations(tmp_path, list(found.at), [found])


@pytest.mark.parametrize("name", ["momentum", "momentum_ema", "amsgrad", "adam_monotone"])
def test_the_theorem_is_fitted_to_its_own(pattern, name):
    (found,) = across_thresholds(replace(run, optimizer=name) for run in thresholds_study(pattern))
    assert found.joint is not None and not found.joint.contradicted


@pytest.mark.parametrize(("optimizer", "said"), [("adam", True), ("lion", False)])
def test_a_study_speaks_of_the_theorem_where_it_applies(tmp_path, optimizer, said):
    for batch_size, epochs in ((4, 14), (8, 9), (16, 8), (32, 9), (64, 13)):
        make_run(tmp_path / "made_up", optimizer, batch_size, epochs, falling=True)
    study, _ = read(tmp_path / "made_up")
    assert ("theorem" in "\n".join(study.summary_lines())) == said


def test_thresholds_that_cannot_be_told_are_left_out(pattern):
    results = thresholds_study(pattern)
    early, late = results[7 * 3], results[-1]
    assert (early.threshold, late.threshold) == (THRESHOLDS[0], THRESHOLDS[-1])
    window = early.batch_size * early.steps  # so that this is its first reading
    results = [replace(r, window=window) if r.threshold == early.threshold else r for r in results]
    results[-1] = replace(late, status=None, steps=None)  # its losses end before they tell
    (found,) = across_thresholds(results)
    assert [one.threshold for one in found.at] == list(THRESHOLDS[1:-1])


def test_the_answer_for_scripts(pattern, curve, tmp_path):
    rising = made_curve(pattern, {b: [500] for b in SIZES}, variant="sgd")
    across = across_thresholds(thresholds_study(pattern))
    path = write_recommendations(tmp_path, [recommend(curve), recommend(rising)], across)
    values = json.loads(path.read_text())  # strict JSON: no NaN, no Infinity
    assert values["schema_version"] == 2 and values["study"] == tmp_path.name
    adam, sgd = values["variants"]
    assert adam["least_sfo"]["batch_size"] == 16
    assert adam["across_thresholds"]["thresholds"] == list(THRESHOLDS)
    assert sgd["across_thresholds"] is None
    assert sgd["interval"][0] is None and sgd["next_batch_size"] == 2
    assert adam["range"]["low"] <= 16 <= adam["range"]["high"]
    assert adam["range"]["within"] == 0.1 and 0 < adam["range"]["confidence"] <= 1
    assert len(adam["runs"]) == 24 and adam["runs"][0]["status"] == "reached"
    assert adam["probability"] > 0.9 > sgd["probability"]
    assert adam["fits"][0]["model"] == "nested"
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
