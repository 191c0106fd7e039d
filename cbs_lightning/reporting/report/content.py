"""What a report shows, as plain values."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.loss_curves import LossCurve, loss_curve
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import LEVEL
from cbs_lightning.analysis.study import Study
from cbs_lightning.config.identity import flatten
from cbs_lightning.console import count_of
from cbs_lightning.fit.curve_fit import Fit
from cbs_lightning.reporting.colors import colors_of, marks_of
from cbs_lightning.reporting.tables import table_rows
from cbs_lightning.results.result import Result, Run, answer
from cbs_lightning.results.trajectory import RuleName

DRAWN_AT = 60  # batch sizes of a fitted curve
HIGHEST = 1e18  # of a band that has no upper end: far outside of any plot
ANSWER = ("status", "steps", "sfo", "loss", "accuracy", "seconds")  # of a run, in this order


def content(study: Study) -> dict[str, Any]:
    """The study's own threshold and rule come as `asked`; every other one of `summary.csv` too."""
    optimizers = dict(sorted((run.result.variant, run.result.optimizer) for run in study.runs))
    colors = colors_of(optimizers.values())
    marks = marks_of(optimizers.items())
    return {
        "study": study.name,
        "asked": _choice(study.request.rule, study.request.threshold),
        "level": LEVEL,
        "data_size": max(run.result.data_size for run in study.runs),
        "variants": [
            {"name": variant, "color": colors[optimizer], "mark": marks[variant]}
            for variant, optimizer in optimizers.items()
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
        "device": result.device,
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
    """For every rule and threshold: each run's answer, and what they say together."""
    rows: dict[tuple[RuleName, float], list[Result]] = defaultdict(list)
    for row in study.rows:
        rows[row.rule, row.threshold].append(row)
    found = []
    for (rule, threshold), answers in rows.items():
        own = (rule, threshold) == (study.request.rule, study.request.threshold)
        untold = [] if own else [run.variant for run in answers if run.status is None]
        own_curves = study.curves_by_request.get((rule, threshold), [])
        says = [_says(curve) for curve in own_curves if curve.variant not in untold]
        for variant, missing in Counter(untold).items():
            runs = sum(run.variant == variant for run in answers)
            says.append(_cannot_say(variant, missing, runs, threshold))
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


def _cannot_say(variant: str, missing: int, runs: int, threshold: float) -> dict[str, Any]:
    """What is said of a variant some of whose runs stopped too soon; the rest would mislead."""
    stopped = f"{missing} of {count_of(runs, 'run')} stopped before {threshold:g} could be told"
    told = f"{variant}: {stopped}. Run again with stop.loss={threshold:g} to know."
    nothing = dict.fromkeys(("least", "fastest", "critical_batch"))
    return {"variant": variant, "told": [told], "shown": False, "forms": [], **nothing}


def _says(curve: Curve) -> dict[str, Any]:
    """The answer of one variant, and the forms fitted to it."""
    found = recommend(curve)
    return {
        "variant": curve.variant,
        "told": found.summary_lines(),
        "least": found.least_sfo.batch_size if found.least_sfo else None,
        "fastest": found.fastest.batch_size if found.fastest else None,
        "critical_batch": _round(found.critical_batch),
        "shown": curve.comparison.shown is not None,
        "forms": [
            {
                "model": form.model,
                "critical_batch": _round(form.critical_batch),
                "interval": _ends(form.interval),
                "aicc": _round(form.aicc),
                "rms": _round(form.rms_log_error),
                "reason": form.reason,
                **_fitted_line(curve, curve.comparison.by_name(form.model)),
            }
            for form in found.fits
        ],
    }


def _fitted_line(curve: Curve, fitted: Fit) -> dict[str, Any]:
    asked = [point.batch_size for point in curve.points if point.reached]
    if len(set(asked)) < 2 or math.isnan(fitted.A):
        return {}
    grid = np.geomspace(min(asked), max(asked), DRAWN_AT)
    sizes = np.minimum(grid, curve.data_size)
    low, high = None, None
    if fitted is curve.comparison.shown and (band := fitted.band(sizes, LEVEL)) is not None:
        low, high = (np.minimum(edge, HIGHEST) for edge in band)
    values = {"b": grid, "steps": fitted.steps(sizes), "low": low, "high": high}
    return {
        name: [_round(float(value)) for value in np.atleast_1d(found)]
        for name, found in values.items()
        if found is not None
    }


def _paper(study: Study) -> list[dict[str, Any]]:
    """The cells of the paper's study, with what was measured of them; none in other studies."""
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
    """What was run, a row a key: the values that there are, the most frequent first."""
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
    """An open end is null."""
    return [_round(end) if end else None for end in interval] if interval else None


def _round_if_float(value: Any) -> Any:
    return _round(value) if isinstance(value, float) else value


def _round(value: float | None) -> float | None:
    """The value with the digits that can be seen; None where it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")
