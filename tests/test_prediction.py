"""b* predicted from the probes of one run: known answers, reasons, and how it is shown."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.noisy_runs import problems, quadratic_record
from cbs_lightning.analysis.prediction_table import Case, cases, rate_curves, scores
from cbs_lightning.analysis.predictions import prediction_sentences, predictions_of
from cbs_lightning.analysis.study import left_out, read
from cbs_lightning.noise.best_rate import best_rate, overshoots
from cbs_lightning.noise.course import Course, NoPredictionError
from cbs_lightning.noise.estimators import ESTIMATORS, decay, noise_level, noise_share
from cbs_lightning.noise.prediction import BEST, predict, prediction_line, with_prediction
from cbs_lightning.noise.record import FILE, NoiseRecord, Probe
from cbs_lightning.reporting.figures.noise import draw_noise
from cbs_lightning.reporting.prediction import write_predictions
from cbs_lightning.reporting.prediction_tables import branch_table, ranges_lines, theorem_table
from cbs_lightning.reporting.published import publish, read_results
from cbs_lightning.reporting.recommendation_file import write_recommendations
from cbs_lightning.reporting.report.page import page
from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic
from tests.studies import make_study

PROBLEMS = {name: (problem, threshold) for name, problem, threshold in problems()}


def synthetic(noise: float = 4.0, power: float = 0.0, decay: float = 2.0, batch: int = 64):
    """A record whose loss falls like k^-decay and whose noise level is noise·loss^power."""
    losses = np.geomspace(2.0, 0.105, 12)
    steps = 100 * losses ** (-1 / decay)
    probes = [
        Probe(
            step=round(step * 1000), samples=0, loss=loss, steps=10.0, eta=0.1,
            preconditioned_noise_trace=4 * noise * loss**power / 0.1, noise_trace=1.0,
            noise_trace_se=0.1, b_simple=100.0, gradient_norm2=0.01, gradient_norm2_se=0.001,
            metric_gradient_norm2=2.0, l1_noise_scale=100.0, a_trial=0.1, c_trial=0.4, a_hvp=0.1,
            c_hvp=0.4,
        )
        for step, loss in zip(steps, losses, strict=True)
    ]  # fmt: skip
    return NoiseRecord("hash", "sgd", "sgd", 0.1, batch, 0, 0.1, "window", probes)


@pytest.fixture
def study(tmp_path) -> Path:
    """A study with probes in one run of one variant."""
    path = tmp_path / "probed"
    make_study(path)
    found, _ = read(path)
    assert found is not None
    run = next(run for run in found.runs if run.result.optimizer == "adam")
    record = replace(
        synthetic(), config_hash=run.result.config_hash, batch_size=run.result.batch_size,
        optimizer="adam", lr=run.result.lr,
    )  # fmt: skip
    (run.directory / FILE).write_text(with_prediction(record).to_json())
    return path


def test_a_step_of_the_quadratic_lowers_its_loss_by_a_less_c_over_b():
    problem = NoisyQuadratic(np.array([1.0, 0.3, 0.01]), lr=0.7)
    for size in (3.0, 50.0):
        a, c = problem.decrease(5, size)
        assert problem.loss(5, size) - problem.loss(6, size) == pytest.approx(a - c / size)


@pytest.mark.parametrize("times", [1, 4, 1000])
def test_the_noise_level_is_near_the_exact_b_star_whatever_the_batch_size_of_the_run(times):
    off = {}
    for name, (problem, threshold) in PROBLEMS.items():
        exact = problem.critical_batch(threshold)
        record = quadratic_record(problem, times * exact, threshold)
        off[name] = abs(math.log(noise_level(Course.of(record)) / exact))
    # A threshold on the plateau between two groups of curvatures: the rate of decay is not local.
    assert off.pop("two, lr 0.05, 0.1") < math.log(4)
    assert np.median(list(off.values())) < math.log(1.4)
    assert max(off.values()) < math.log(2.4)


def test_the_ratio_of_sums_is_farther_off_the_larger_the_runs_batch():
    worst = {}
    for times in (1, 1000):
        ratios = []
        for problem, threshold in PROBLEMS.values():
            exact = problem.critical_batch(threshold)
            record = quadratic_record(problem, times * exact, threshold)
            ratios.append(abs(math.log(ESTIMATORS["one_step_hvp"](Course.of(record)) / exact)))
        worst[times] = np.median(ratios)
    assert worst[1000] > worst[1] > math.log(1.2)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_power_law_with_known_noise_has_the_b_star_of_the_derivation(power):
    found = synthetic(power=power, batch=10**9)  # a run in which noise is nothing
    course = Course.of(found)
    assert decay(course) == pytest.approx(2.0, rel=1e-3)
    relative = 4.0 * 0.1**power / 0.1
    assert noise_share(course) * 10**9 == pytest.approx(relative, rel=1e-3)
    assert noise_level(course) == pytest.approx(relative * 1.5, rel=1e-3)


def test_noise_above_the_loss_itself_is_halved_on_the_scale_of_logarithms():
    course = Course.of(synthetic(power=1.0, batch=1))  # 4 times the loss
    assert noise_level(course) == pytest.approx(2.0, rel=1e-3)


def test_the_prediction_is_at_most_the_gradient_noise_scale():
    assert ESTIMATORS[BEST](Course.of(synthetic())) == noise_level(Course.of(synthetic()))
    assert ESTIMATORS[BEST](Course.of(synthetic(noise=40.0, batch=10**6))) == pytest.approx(100)


def test_every_other_estimator_on_constants():
    found = predict(synthetic())
    assert found["one_step_trial"].critical_batch == pytest.approx(8.0)
    assert found["integral_hvp"].critical_batch == pytest.approx(8.0, rel=0.02)
    assert found["b_simple"].critical_batch == pytest.approx(100.0)
    assert found["sign_descent"].critical_batch == pytest.approx(400.0)
    # 12 probes stand for 10 steps each, with c = 0.4 and 64 samples; the loss fell from 2 to 0.1.
    gained = 1.9 / (0.4 * 120)
    assert found["progress"].critical_batch == pytest.approx(2 / (gained + 1 / 64))


def test_the_interval_has_the_errors_of_measurement():
    record = synthetic()
    low, high = predict(record)["b_simple"].interval
    assert low < 100 < high < 115
    noisy = [replace(each, gradient_norm2_se=0.01) for each in record.probes]
    wide = predict(replace(record, probes=noisy))["b_simple"].interval
    assert wide[1] / wide[0] > high / low


@pytest.mark.parametrize(
    ("name", "value", "estimator", "reason"),
    [
        ("a_trial", -0.1, "one_step_trial", "a <= 0: a step of the full gradient would not lower"),
        ("c_hvp", -0.1, "one_step_hvp", "c <= 0: noise would not raise the loss"),
        ("a_hvp", -0.1, "integral_hvp", "a <= 0"),
        ("c_trial", None, "one_step_trial", "c was not measured"),
        ("preconditioned_noise_trace", None, BEST, "tr PΣ was not measured"),
        ("preconditioned_noise_trace", -1.0, BEST, "tr PΣ <= 0"),
        ("gradient_norm2", -1.0, "b_simple", "too small to be told from noise"),
    ],
)
def test_an_estimator_without_a_value_says_why(name, value, estimator, reason):
    record = synthetic()
    changed = [replace(each, **{name: value}) for each in record.probes]
    found = predict(replace(record, probes=changed))[estimator]
    assert found.critical_batch is None
    assert reason in found.reason


def test_where_clipping_ends_a_prediction_begins():
    record = synthetic()
    before = [replace(each, clipping=0.5, eta=None) for each in record.probes]
    after = [replace(each, clipping=1.0) for each in record.probes]
    found = predict(replace(record, probes=[*before[:4], *after[4:]]))
    assert found[BEST].critical_batch == pytest.approx(
        predict(record)[BEST].critical_batch, rel=0.1
    )
    none = predict(replace(record, probes=[*after[:4], *before[4:]]))
    assert "gradients are clipped at 8 of 12 probes" in none[BEST].reason
    assert none["b_simple"].critical_batch == pytest.approx(100)


def test_an_estimator_whose_error_is_not_known_has_no_interval():
    found = predict(synthetic())["sign_descent"]
    assert found.critical_batch is not None and found.interval is None


def test_too_few_probes_or_a_threshold_beyond_them():
    record = synthetic()
    assert predict(replace(record, probes=record.probes[:2]))[BEST].reason.startswith("2 probes")
    assert "the probes end at a loss of 0.105, above 0.01" in predict(record, 0.01)[BEST].reason
    rising = [replace(each, step=10_000_000 - each.step) for each in record.probes]
    with pytest.raises(NoPredictionError, match="does not fall"):
        noise_level(Course.of(replace(record, probes=rising)))


def test_the_line_at_the_end_of_a_run():
    line = prediction_line(with_prediction(synthetic()))
    assert line.startswith("predicted b* = ")
    assert "(90 % interval " in line
    assert line.endswith("at this learning rate; B_simple = 100")
    without = with_prediction(replace(synthetic(), probes=[]))
    assert prediction_line(without).startswith("no prediction of b*: 0 probes")


def test_a_record_reads_back_as_it_was_written():
    record = with_prediction(synthetic())
    assert NoiseRecord.from_json(record.to_json()) == record


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"schema_version": 1', '"schema_version": 7'),
        lambda text: text.replace('"step"', '"stop"'),
        lambda text: text.replace('"eta": 0.1', '"eta": "fast"'),
        lambda text: text.replace('"threshold": 0.1', '"threshold": null'),
        lambda text: text.replace('"config_hash": "', '"config_hash": "f'),
        lambda _: "[]",
        lambda _: "\0\0",
        lambda _: "[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_in_one_line_and_the_run_stays(study, damage):
    (path,) = study.glob(f"*/{FILE}")
    path.write_text(damage(path.read_text()))
    found, lines = read(study)
    assert found is not None
    assert not found.noise_records
    (line,) = [line for line in lines if FILE in line]
    assert "\n" not in line and len(line) < 400 + len(str(path))
    assert lines == left_out(found)
    assert any(run.directory == path.parent for run in found.runs)


def test_an_answer_names_the_prediction_beside_the_measurement(study, tmp_path):
    found, _ = read(study)
    adam = next(each for each in found.recommendations if each.predictions)
    (sentence,) = prediction_sentences(adam.predictions)
    assert sentence.startswith("Predicted from one run: b* = ")
    assert "B_simple = 100" in sentence
    assert any(sentence in line for line in adam.summary_lines())
    path = write_recommendations(study, found.recommendations, found.across)
    stored = json.loads(path.read_text())["variants"]
    prediction, *_ = next(each for each in stored if each["predictions"])["predictions"]
    assert prediction["critical_batch"] == adam.predictions[0].critical_batch
    assert set(prediction["estimators"]) == set(ESTIMATORS)


def test_a_tuned_curve_repeats_no_predictions_of_the_curves_it_is_made_of(study):
    found, _ = read(study)
    (probed,) = (curve for curve in found.curves if predictions_of(curve, found.noise_records))
    tuned = replace(probed, variant=f"{probed.variant} lr tuned")
    assert predictions_of(tuned, found.noise_records) == ()


def test_the_report_has_a_table_of_predictions(study, monkeypatch):
    monkeypatch.setattr("cbs_lightning.reporting.report.page.content", lambda _: {})
    found, _ = read(study)
    text = page(found)
    section = text[text.index('aria-labelledby="noise-title"') :]
    assert not section.startswith('aria-labelledby="noise-title" hidden')
    assert section.count("<td>") >= 10 and "0 gradients, " in section
    adam = next(each for each in found.recommendations if each.predictions)
    assert f"<td>{adam.least_sfo.batch_size}</td><td>100</td>" in section  # beside B_simple
    assert 'id="branches">\n\n' in section  # none
    for path in study.glob(f"*/{FILE}"):
        path.unlink()
    without, _ = read(study)
    assert 'aria-labelledby="noise-title" hidden' in page(without)


def test_the_report_has_what_branches_say_and_a_schedule_to_paste(study, monkeypatch):
    monkeypatch.setattr("cbs_lightning.reporting.report.page.content", lambda _: {})
    (path,) = study.glob(f"*/{FILE}")
    record = NoiseRecord.from_json(path.read_text())
    branches = [{"batch_size": size} for size in (8, 16, 64)]
    probes = [
        replace(record.probes[0], branches=branches, local_critical_batch_reason="a <= 0"),
        replace(record.probes[1], branches=branches, local_critical_batch=24.0,
                local_critical_batch_interval=(12.0, 50.0)),
        *record.probes[2:],
    ]  # fmt: skip
    schedule = {"0": 8, "900": 32}
    path.write_text(replace(record, probes=probes, schedule=schedule).to_json())
    found, _ = read(study)
    text = page(found).replace("\N{NO-BREAK SPACE}", " ")
    assert "local b* none at a loss of 2 (a &lt;= 0); 24 (" in text
    assert "{0: 8, 900: 32}; 8 is the smallest of its branches" in text
    probes[1] = replace(probes[1], local_critical_batch_interval=(12.0, math.inf))
    path.write_text(replace(record, probes=probes, schedule=schedule).to_json())
    assert "no batch sizes are suggested by its branches" in page(read(study)[0])


def labels_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_figure_shows_prediction_measurement_and_noise_scale(study):
    found, _ = read(study)
    figure = draw_noise(found.name, found.noise_records, found.recommendations)
    by_loss, beside, gains, scales = figure.axes
    adam = next(each for each in found.recommendations if each.predictions)
    level, scale = (line.get_ydata() for line in by_loss.lines[:2])
    np.testing.assert_allclose(level, 4.0 / np.geomspace(2.0, 0.105, 12))
    assert set(scale) == {100.0}
    marks = {line.get_marker(): line.get_ydata()[0] for line in beside.lines}
    assert marks["D"] == adam.predictions[0].critical_batch
    assert marks["*"] == adam.least_sfo.batch_size
    assert marks["x"] == pytest.approx(100.0)
    assert set(gains.lines[0].get_ydata()) == {0.1}
    assert set(gains.lines[1].get_ydata()) == {0.4 / adam.predictions[0].batch_size}
    assert set(scales.lines[0].get_ydata()) == {100.0}
    assert by_loss.get_ylim()[1] > max(level)
    assert not any("branches" in label for label in labels_of(figure))
    assert draw_noise(found.name, {}, [replace(adam, predictions=())]) is None


def test_runs_without_a_prediction_and_with_branches_are_drawn_too(study):
    found, _ = read(study)
    adam = next(each for each in found.recommendations if each.predictions)
    nothing = [
        replace(each, critical_batch=None, interval=None, reason="a <= 0")
        for each in adam.predictions
    ]
    ((name, record),) = found.noise_records.items()
    branched = [
        replace(each, local_critical_batch=24.0, local_critical_batch_interval=(12.0, math.inf))
        for each in record.probes
    ]
    records = {name: replace(record, probes=branched)}
    figure = draw_noise(found.name, records, [replace(adam, predictions=nothing)])
    by_loss, beside, *_ = figure.axes
    assert "D" not in {line.get_marker() for line in beside.lines}
    local = [line for line in by_loss.lines if line.get_marker() == "_"]
    assert len(local) == len(record.probes) and local[0].get_ydata()[0] == 24
    assert "local critical batch size of branches" in labels_of(figure)
    empty = {name: replace(record, probes=[])}
    assert draw_noise(found.name, empty, [adam]) is None


def case(predicted: float | None, interval=(8.0, 32.0)) -> Case:
    values = dict.fromkeys(ESTIMATORS, None) | {BEST: predicted}
    return Case("adam", "adam", 0.001, 0.1, 16, 0, 16.0, interval, values)


def test_a_factor_is_to_the_measured_range():
    assert case(20.0).factor(BEST) == 1
    assert case(2.0).factor(BEST) == pytest.approx(4)
    assert case(96.0).factor(BEST) == pytest.approx(3)
    assert case(1.0, (0.0, 32.0)).factor(BEST) == 1  # open below
    assert case(None).factor(BEST) is None
    (score,) = scores([case(20.0), case(2.0), case(96.0), case(None)])
    assert (score.cases, score.without, score.median, score.worst) == (4, 1, 3, 4)
    assert score.within == (0.25, 0.75)  # a case without a prediction is not within


def test_ranges_with_an_open_end_are_counted():
    """Else whatever is predicted too small looks right."""
    open_below = replace(case(0.01, (0.0, 32.0)), own_interval=(0.001, 0.1), is_widened=True)
    closed = replace(case(20.0), own_interval=(5.0, 80.0))
    (score,) = scores([open_below, closed])
    assert score.within == (1, 1) and score.within_of_least == (0.5, 0.5)
    first, _, own = ranges_lines([open_below, closed])
    assert "2 measured ranges" in first and "1 open below, 0 open above; 1 widened" in first
    assert "holds the least K·b in 1 of 2 cases" in own


def test_the_tables_are_written_and_told(study):
    found, _ = read(study)
    assert len(cases(found, [found.request.threshold])) <= 1
    lines = write_predictions(study, [])
    assert any(line.startswith("| estimator") for line in lines)
    table = (study / "tables" / "prediction.md").read_text()
    assert "## b* against the learning rate" in table
    assert "## Best learning rate of a single step" in table
    assert "Branches" not in table and "Theorem" not in table  # none was asked for


def test_published_runs_measure_what_is_not_there(study, tmp_path):
    before, _ = read(study)
    threshold = before.request.threshold
    (wanted,) = cases(before, [threshold])
    results, _ = publish(study, tmp_path / "published")
    (lost,) = (run for run in before.runs if run.result.variant == "adam"
               and run.result.batch_size == 32)  # fmt: skip
    shutil.rmtree(lost.directory)
    after, _ = read(study)
    assert cases(after, [threshold]) != [wanted]
    assert cases(after, [threshold], read_results(results)) == [wanted]
    lines = write_predictions(study, [], tmp_path / "published")
    assert f"| {wanted.variant} | {threshold:g} |" in "\n".join(lines)


def test_the_best_rate_of_a_step_is_that_of_the_quadratic():
    """GᵀPG = 1, GᵀPHPG = 2 and tr(PHPΣ) = 80, measured with steps of 0.1."""
    probes = [
        replace(each, eta=0.1, metric_gradient_norm2=1.0, a_trial=0.1 - 0.01, c_trial=0.4)
        for each in synthetic().probes
    ]
    record = replace(synthetic(), probes=probes, lr=0.01)  # η is ten times as much: momentum
    for size in (4, 64):
        assert best_rate(record, size) == pytest.approx(0.1 * 1 / (2 + 80 / size))
    assert best_rate(replace(record, lr=None), 4) is None
    flat = [replace(each, a_trial=0.2, c_trial=0.0) for each in probes]
    assert best_rate(replace(record, probes=flat), 4) is None  # nothing limits a step


def test_rates_run_and_rates_told_stand_side_by_side(study):
    found, _ = read(study)
    curves = rate_curves(found, [found.request.threshold])
    told = next(each for each in curves if each.name.startswith("by probes"))
    record = next(iter(found.noise_records.values()))
    assert told.optimizer == "adam"
    for size, rate in told.rates.items():
        assert rate == best_rate(record, size, found.request.threshold)


def test_a_step_overshoots_where_a_is_not_above_0():
    assert overshoots(synthetic()) is False
    turned = [replace(each, a_trial=-0.1) for each in synthetic().probes]
    assert overshoots(replace(synthetic(), probes=turned)) is True
    assert overshoots(replace(synthetic(), probes=[])) is None


def test_branches_and_the_theorem_have_tables_of_their_own():
    branch = {"batch_size": 8, "steps": [0, 4], "loss": [1.0, 0.9], "decrease_per_step": 0.02}
    found = replace(synthetic().probes[0], branches=[branch], local_critical_batch=24.0,
                    local_critical_batch_interval=(12.0, math.inf), noise_level=3.5)  # fmt: skip
    record = replace(synthetic(), probes=[found], schedule={"0": 16, "900": 32})
    table = branch_table([record, synthetic()])
    assert "| 24 | 12 and more | 3.5 |" in table[4]
    assert table[-1].startswith("no batch sizes are suggested by its branches")
    bounded = replace(found, local_critical_batch_interval=(12.0, 50.0))
    assert branch_table([replace(record, probes=[bounded])])[-1].endswith("{0: 16, 900: 32}")
    terms = {"c1/K": 0.5, "c2/b": 0.25, "c3": 0.25}
    theorems = [{"bound": each, "terms": terms, "vi": 0.5, "dist": 2.0} for each in (1.0, 1.5)]
    measured = [replace(synthetic(), theorem=each) for each in theorems]
    rows = theorem_table([*measured, synthetic()])
    assert rows[0] == "|  | sgd, b = 64 |"
    assert "| bound | 1 to 1.5 |" in rows and "| c2/b | 0.25 |" in rows
    assert "| critical_batch | none |" in rows


def test_the_noise_of_own_steps_stands_in_for_a_metric():
    """Of Lion or Muon, which have none."""
    known = synthetic()
    probes = [
        replace(each, eta=None, own_noise=each.eta * each.preconditioned_noise_trace,
                preconditioned_noise_trace=None, metric_gradient_norm2=None, a_trial=None,
                c_trial=None, a_hvp=None, c_hvp=None, a_own=0.1, c_own=0.4)
        for each in known.probes
    ]  # fmt: skip
    found = predict(replace(known, probes=probes))
    assert found[BEST].critical_batch == pytest.approx(predict(known)[BEST].critical_batch)
    assert found["own_steps"].critical_batch == pytest.approx(8.0)
    assert found["one_step_trial"].reason == "a was not measured"
