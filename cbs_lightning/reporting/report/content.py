"""The contents of a report, as plain values."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cbs_lightning.analysis.advice import Advice
from cbs_lightning.analysis.conditions import describe_conditions, made_on, why_seconds_differ
from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.loss_curves import LossCurve, loss_curve
from cbs_lightning.analysis.names import short_names
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import LEVEL, FittedForm, Recommendation
from cbs_lightning.analysis.study import Study
from cbs_lightning.config.identity import flatten
from cbs_lightning.console import count_of
from cbs_lightning.fit.curve_fit import Fit
from cbs_lightning.fit.likelihood import Floats
from cbs_lightning.reporting.colors import colors_of, marks_of
from cbs_lightning.reporting.escaping import unbroken
from cbs_lightning.reporting.tables import table_rows
from cbs_lightning.results.result import Result, Run, answer
from cbs_lightning.results.trajectory import RuleName

DRAWN_AT = 60  # batch sizes of a fitted curve
HIGHEST = 1e18  # of a band that has no upper end: far outside of any plot
ANSWER = ("status", "steps", "sfo", "loss", "accuracy", "seconds")  # of a run, in this order


def content(study: Study) -> dict[str, Any]:
    """Everything that the report shows; the study's own threshold and rule are `asked`."""
    optimizers = dict(sorted((run.result.variant, run.result.optimizer) for run in study.runs))
    colors = colors_of(optimizers.items())
    marks = marks_of(optimizers.items())
    short = short_names({run.result.variant: run.result for run in study.runs}.values())
    return {
        "study": study.name,
        "asked": _choice(study.request.rule, study.request.threshold),
        "window": study.request.window,
        "level": LEVEL,
        "runs_at": "../" if study.folder else "",
        "data_size": max(run.result.data_size for run in study.runs),
        "seconds_caveat": why_seconds_differ(study.answers),
        "variants": [
            {
                "name": variant,
                "short": short[variant],
                "color": colors[variant],
                "mark": marks[variant],
            }
            for variant in optimizers
        ],
        "runs": [_run(study, run, list(optimizers)) for run in study.runs],
        "answer_keys": ANSWER,
        "choices": _choices(study),
        "paper": _paper(study),
        "ran": _ran([run.result for run in study.runs]),
        "skipped": [f"{run.directory.name}: {run.reason}" for run in study.broken],
    }


def _choice(rule: str, threshold: float) -> dict[str, Any]:
    return {"rule": str(rule), "threshold": threshold}


def _run(study: Study, run: Run, variants: list[str]) -> dict[str, Any]:
    result = run.result
    request = study.request
    return {
        "directory": run.directory.name,
        "variant": variants.index(result.variant),
        "batch_size": result.batch_size,
        "effective_batch_size": result.effective_batch_size,
        "seed": result.seed,
        "sliced": result.sliced,
        "steps_run": result.steps_run,
        "epochs_run": _round(result.epochs_run),
        "seconds_per_step": _round(result.seconds_per_step),
        "test_accuracy": _round(result.test_accuracy),
        "device": made_on(result) if describe_conditions(study.answers) else result.device,
        "losses": {
            rule: _losses(
                loss_curve(run, answer(result, run.trajectory, replace(request, rule=rule)))
            )
            for rule in RuleName
        },
    }


def _losses(curve: LossCurve) -> dict[str, Any]:
    return {"at": curve.steps.tolist(), "loss": [_round(float(loss)) for loss in curve.loss]}


def _choices(study: Study) -> list[dict[str, Any]]:
    """For every rule and threshold: each run's answer, and the answers of the variants."""
    rows: dict[tuple[RuleName, float], list[Result]] = defaultdict(list)
    for row in study.rows:
        rows[row.rule, row.threshold].append(row)
    found = []
    for (rule, threshold), answers in rows.items():
        own = (rule, threshold) == (study.request.rule, study.request.threshold)
        unknown = [] if own else [run.variant for run in answers if run.status is None]
        own_curves = study.curves_by_request.get((rule, threshold), [])
        says = [
            _says(curve, _answer(study, curve, own))
            for curve in own_curves
            if curve.variant not in unknown
        ]
        for variant, missing in Counter(unknown).items():
            runs = sum(run.variant == variant for run in answers)
            says.append(_cannot_say(variant, missing, runs, threshold, Advice(answers)))
        found.append(
            _choice(rule, threshold)
            | {
                "answers": [
                    [_round_if_float(getattr(run, key)) for key in ANSWER] for run in answers
                ],
                "says": sorted(says, key=lambda one: str(one["variant"])),
            }
        )
    return found


def _answer(study: Study, curve: Curve, own: bool) -> Recommendation:
    """The study's own answer where it is one; others are not asked which batch size decides."""
    if own:
        return study.recommendations[study.curves.index(curve)]
    return recommend(curve, study.question.within, study.noise_records, leverage=False)


def _cannot_say(
    variant: str, missing: int, runs: int, threshold: float, advice: Advice
) -> dict[str, Any]:
    """The entry of a variant some of whose runs stopped too soon; the rest would mislead."""
    stopped = f"{missing} of {count_of(runs, 'run')} stopped too early to answer {threshold:g}"
    cure = f"Run again with {advice.stricter_threshold(threshold)} to find out."
    line = unbroken(f"{variant}: {stopped}. {cure}")
    nothing = dict.fromkeys(("least", "fastest", "critical_batch", "interval", "curve"))
    return {"variant": variant, "lines": [line], "ranges": [], "forms": [], **nothing}


def _says(curve: Curve, found: Recommendation) -> dict[str, Any]:
    """The answer of one variant, the curve behind it, and the forms fitted to it."""
    return {
        "variant": curve.variant,
        "lines": [unbroken(line) for line in (found.headline(), *found.details())],
        "least": found.least_sfo.batch_size if found.least_sfo else None,
        "several": len(found.batch_sizes) > 1,
        "fastest": found.fastest.batch_size if found.fastest else None,
        "ranges": [
            asdict(cheap)
            for cheap in (found.range, found.wider_range)
            if cheap is not None and len(found.batch_sizes) > 1
        ],
        "critical_batch": _round(found.critical_batch),
        "interval": _ends(found.interval),
        "probability": _round(found.probability),
        "formula": _round(found.formula_probability),
        "curve": _curve(curve),
        "forms": [
            {
                "model": form.model,
                "critical_batch": _round(form.critical_batch),
                "interval": _ends(form.interval),
                "rms": _round(form.rms_log_error),
                "reason": _to_mind(form),
                **_form_line(curve, curve.comparison.by_name(form.model)),
            }
            for form in found.fits
        ],
    }


def _to_mind(form: FittedForm) -> str:
    misses = "misses batch sizes by more than their seeds scatter" if form.misses else ""
    return "; ".join(filter(None, (misses, form.reason)))


def _curve(curve: Curve) -> dict[str, list[float | None]] | None:
    """The curve of K, its band and that of one more run; None if there are too few runs."""
    if not curve.is_fitted:
        return None
    grid, sizes = _drawn_sizes(curve)
    found = curve.comparison
    values = {"b": grid, "steps": found.steps(sizes)}
    bands = {"": found.band(sizes, LEVEL), "further_": found.prediction_band(sizes, LEVEL)}
    for name, band in bands.items():
        assert band is not None
        values |= {f"{name}low": band[0], f"{name}high": band[1]}
    return {name: _rounded(own) for name, own in values.items()}


def _form_line(curve: Curve, fitted: Fit) -> dict[str, list[float | None]]:
    if not curve.is_fitted or math.isnan(fitted.A):
        return {}
    grid, sizes = _drawn_sizes(curve)
    return {"b": _rounded(grid), "steps": _rounded(fitted.steps(sizes))}


def _drawn_sizes(curve: Curve) -> tuple[Floats, Floats]:
    """Batch sizes over which a curve is drawn, as asked for and as they were."""
    asked = [point.batch_size for point in curve.points if point.reached]
    grid = np.geomspace(min(asked), max(asked), DRAWN_AT)
    return grid, np.minimum(grid, curve.data_size)


def _rounded(values: float | Floats) -> list[float | None]:
    """Values of at most `HIGHEST`, because infinite ones could not be drawn."""
    return [_round(float(value)) for value in np.minimum(values, HIGHEST)]


def _paper(study: Study) -> list[dict[str, Any]]:
    """The cells of the paper's study beside those measured; empty for other studies."""
    rows = [row for row in table_rows(study.name, study.curves) if row.paper is not None]
    return [
        {
            "variant": row.variant,
            "batch_size": row.batch_size,
            "status": row.status,
            "steps": row.steps,
            "sfo": row.sfo,
            "accuracy": row.accuracy,
            "seconds": row.seconds,
            "paper_reached": row.paper.reached,
            "paper_accuracy": row.paper.accuracy,
            "paper_seconds": row.paper.seconds,
        }
        for row in rows
        if row.paper is not None
    ]


def _ran(results: list[Result]) -> list[dict[str, Any]]:
    """What was run, one row per key: its values, the most frequent first."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for result in results:
        facts = {
            "device": result.device,
            "machine": result.machine,
            "commit": result.commit,
            **{f"version of {name}": version for name, version in result.versions.items()},
            **flatten(result.configuration),
        }
        for key, value in facts.items():
            if value is not None:
                found[key][value if isinstance(value, str) else json.dumps(value)] += 1
    return [
        {"key": key, "values": sorted(values, key=lambda value: -values[value])}
        for key, values in found.items()
    ]


def _ends(interval: tuple[float, float] | None) -> list[float | None] | None:
    """The ends of an interval; null for an open end."""
    return [_round(end) if end else None for end in interval] if interval else None


def _round_if_float(value: Any) -> Any:
    return _round(value) if isinstance(value, float) else value


def _round(value: float | None) -> float | None:
    """The value with the digits that can be seen; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")
