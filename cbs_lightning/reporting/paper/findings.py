"""Findings over all runs: b* beside the paper's, forms, seeds, agreement, machines."""

import math
from collections import Counter
from itertools import chain
from statistics import median

from cbs_lightning.analysis.conditions import hardware, why_seconds_differ
from cbs_lightning.analysis.curves import Curve
from cbs_lightning.analysis.recommendation import LEVEL
from cbs_lightning.console import count_of
from cbs_lightning.reporting.escaping import markdown
from cbs_lightning.reporting.paper.study import PublishedStudy
from cbs_lightning.reporting.paper.text import (
    NOT_YET,
    curves_by_variant,
    measured_cells,
    name_of,
    number,
    power,
    table,
)
from cbs_lightning.results.trajectory import RuleName

FEWEST_SIZES = 3  # that reached a threshold, for a row about b*


def critical_tables(study: PublishedStudy) -> list[str]:
    """b* by optimizer and threshold: measured, from the fitted curves, and the paper's."""
    rows = []
    for curve in _telling(study):
        paper = study.paper.critical if curve.threshold == study.paper.threshold else {}
        rows.append(
            [*_critical_row(curve), power(paper[o]) if (o := curve.variant) in paper else ""]
        )
    if not rows:
        return [
            f"{study.paper.title}: no optimizer has reached a threshold at {FEWEST_SIZES} batch "
            "sizes yet."
        ]
    header = [
        "optimizer", "loss ≤", "batch sizes", "smallest K·b at", f"{LEVEL:.0%} interval",
        "P(minimum inside)", "b* from the curves", f"{LEVEL:.0%} interval",
        "at most 10 % more", "b* in the paper",
    ]  # fmt: skip
    return [f"{study.paper.title}, rule `epoch`:", "", *table(header, rows)]


def _telling(study: PublishedStudy) -> list[Curve]:
    """The usable curves by the paper's rule, sorted by optimizer, the loosest threshold first."""
    by_rule = chain.from_iterable(
        own for (rule, _), own in study.curves_by_request.items() if rule is RuleName.EPOCH
    )
    order = [*study.paper.cells]
    known = [curve for curve in by_rule if _tells(study, curve)]
    return sorted(
        known,
        key=lambda c: (
            order.index(c.optimizer) if c.optimizer in order else 9,
            c.variant,
            -c.threshold,
        ),
    )


def _tells(study: PublishedStudy, curve: Curve) -> bool:
    reached = [point for point in curve.points if point.reached]
    untold = any(
        row.status is None
        for row in study.rows
        if (row.variant, row.threshold, row.rule) == (curve.variant, curve.threshold, curve.rule)
    )
    at_once = any(point.at_first_reading for point in reached)
    return len(reached) >= FEWEST_SIZES and not untold and not at_once


def _critical_row(curve: Curve) -> list[str]:
    found, minimum = curve.comparison, curve.comparison.measured
    near = found.range()
    sizes = [point.batch_size for point in curve.points if point.reached]
    claimed = found.critical_batch is not None
    return [
        name_of(curve.variant),
        f"{curve.threshold:g}",
        f"{power(sizes[0])} to {power(sizes[-1])}",
        f"{power(minimum.batch_size)}" if minimum else "",
        _span(minimum.interval) if minimum and minimum.interval else "",
        f"{found.probability:.2f}",
        f"{found.critical_batch:,.0f}" if claimed else "none claimed",
        _span(found.interval(LEVEL)),
        _span((near.low, near.high)) if near else "",
    ]


def _span(interval: tuple[float, float]) -> str:
    low, high = interval
    if low == high:
        return f"{low:,.0f}"
    if low == 0:
        return f"up to {high:,.0f}" if math.isfinite(high) else "open"
    return f"{low:,.0f} to {high:,.0f}" if math.isfinite(high) else f"{low:,.0f} and more"


def estimates(study: PublishedStudy) -> list[str]:
    """Section 4's lower bound of Adam's b*, beside what was measured."""
    paper, curve = study.paper, curves_by_variant(study).get("adam")
    text = (
        f"{paper.title}: the formula gives {paper.estimate:,.0f} (the paper's text says "
        f"{paper.printed_estimate:,}). "
    )
    if curve is None or curve.best is None or len(curve.points) < FEWEST_SIZES:
        return [f"- {text}Adam's b* is {NOT_YET}."]
    best = curve.best.batch_size
    how = "below" if best < paper.estimate else "above"
    return [f"- {text}Adam's smallest measured K·b is at b = {power(best)}, {how} the bound."]


def form_table(study: PublishedStudy) -> list[str]:
    """The error of each form in log K, at the study's own threshold and over all thresholds."""
    rows = []
    for variant in dict.fromkeys([*study.paper.cells, *curves_by_variant(study)]):
        curve = curves_by_variant(study).get(variant)
        if curve is None or sum(bool(point.reached) for point in curve.points) <= FEWEST_SIZES:
            continue
        fits = {fitted.model: fitted for fitted in curve.comparison}
        errors = [f"{fits[name].rms_log_error:.2f}" for name in ("iiduka", "mccandlish", "nested")]
        spread = _seed_scatter(curve)
        rows.append([name_of(variant), *errors, f"{spread:.2f}" if spread is not None else ""])
    if not rows:
        return [f"{study.paper.title}: too few batch sizes so far."]
    header = ["RMS error of log K", "the paper's form", "S + E/b", "nested", "between seeds"]
    lines = [f"{study.paper.title}, loss ≤ {study.paper.threshold:g}:", "", *table(header, rows)]
    says = [
        f"- {name_of(found.variant)}: {found.joint.describe()}"
        for found in study.across
        if found.joint is not None
    ]
    return [*lines, "", "Over several thresholds:", "", *says] if says else lines


def _seed_scatter(curve: Curve) -> float | None:
    """Standard deviation of log K between seeds, pooled over the batch sizes with several."""
    squares, spare = 0.0, 0
    for point in curve.points:
        logs = [math.log(run.steps) for run in point.reached if run.steps]
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((value - mean) ** 2 for value in logs)
            spare += len(logs) - 1
    return math.sqrt(squares / spare) if spare else None


def seed_table(study: PublishedStudy) -> list[str]:
    """K of every seed, for cells with several."""
    rows = []
    for curve in study.curves:
        for point in curve.points:
            found = [run.steps for run in point.reached if run.steps is not None]
            if len(found) < 2:
                continue
            rows.append(
                [
                    name_of(curve.variant),
                    power(point.batch_size),
                    ", ".join(f"{steps:,}" for steps in sorted(found)),
                    number(point.steps),
                    f"{max(found) / min(found) - 1:.0%}",
                ]
            )
    if not rows:
        why = (
            "one seed per cell so far, so this is not known yet" if study.curves else "no cell yet"
        )
        return [f"{study.paper.title}: {why}."]
    scatter = [
        f"{name_of(curve.variant)} {spread:.3f}"
        for curve in study.curves
        if (spread := _seed_scatter(curve)) is not None
    ]
    pooled = (
        f"Standard deviation of log K between seeds, pooled: {', '.join(scatter)}. By the rule "
        "`epoch` K is a whole number of epochs: a scatter of less than one does not show, and the "
        "intervals for b* allow for that."
    )
    header = ["optimizer", "b", "K of each seed", "median", "largest over smallest"]
    return [f"{study.paper.title}:", "", *table(header, rows), "", pooled]


def agreement(study: PublishedStudy) -> list[str]:
    """Which cells reached the threshold in the paper and here, and how the accuracies compare."""
    both, differ, gaps = 0, [], []
    for optimizer, points in measured_cells(study).items():
        for cell in study.paper.cells[optimizer]:
            point = points.get(cell.batch_size)
            if point is None or (point.abandoned and not point.reached):
                continue
            both += 1
            if cell.reached != point.all_reached:
                there, here = ("reached", "not") if cell.reached else ("not", "reached")
                place = f"{name_of(optimizer)} at {power(cell.batch_size)}"
                differ.append(f"{place} ({there} in the paper, {here} here)")
            elif cell.accuracy is not None:
                own = [run.accuracy for run in point.reached if run.accuracy is not None]
                gaps += [100 * (median(own) - cell.accuracy)] if own else []
    if not both:
        return [f"{study.paper.title}: {NOT_YET}."]
    cells = count_of(both, "measured cell")
    text = f"{study.paper.title}: {both - len(differ)} of {cells} end as in the paper, either "
    text += "reaching the threshold or not"
    text += f". Different: {', '.join(differ)}." if differ else "."
    if gaps:
        text += (
            " The training accuracy at K differs from the paper's by "
            f"{median(map(abs, gaps)):.2f} percentage points (median), at most by "
            f"{max(gaps, key=abs):+.2f}."
        )
    return [text]


def machines(study: PublishedStudy) -> list[str]:
    """The machines, packages and commits of the runs."""
    if not study.answers:
        return [f"{study.paper.title}: {NOT_YET}."]
    places = Counter(f"{hardware(run)}, {count_of(run.threads, 'thread')}" for run in study.answers)
    commits = Counter((run.commit or "unknown")[:10] for run in study.answers)
    packages = Counter(
        ", ".join(
            f"{name} {run.versions[name]}"
            for name in ("torch", "lightning")
            if name in run.versions
        )
        for run in study.answers
    )
    lines = [f"{study.paper.title}, {count_of(len(study.answers), 'run')}:", ""]
    for what, found in (("machine", places), ("packages", packages), ("commit", commits)):
        said = "; ".join(
            f"{markdown(key)} ({count_of(n, 'run')})" for key, n in found.most_common()
        )
        lines.append(f"- {what}: {said}")
    if reason := why_seconds_differ(study.answers):
        lines.append(f"- seconds: {reason}")
    return lines
