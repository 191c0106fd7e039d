"""Tables of what probes say, in Markdown: b* predicted and measured, and what else follows."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from cbs_lightning.analysis.prediction_table import WITHIN, Case, RateCurve, Score
from cbs_lightning.console import visible
from cbs_lightning.noise.branches import schedule_line
from cbs_lightning.noise.prediction import BEST
from cbs_lightning.noise.record import NoiseRecord

SHOWN = (BEST, "noise_level", "one_step_trial", "own_steps", "progress", "b_simple")
# Rows of the theorem's table: where a number is in `noise.json`.
OF_THEOREM = (
    "steps", "sigma2", "G", "dist", "vi", "vi_se", "c1/K", "c2/b", "c3", "bound", "bound_over_vi",
    "is_infinite", "weights_at_0", "dist_times_G", "critical_batch",
)  # fmt: skip


def case_table(found: Iterable[Case]) -> list[str]:
    """A row per case: measured, predicted by each estimator, and the best one's factor."""
    head = ["variant", "loss", "run at b", "measured b*", "least K·b", *SHOWN, "factor"]
    rows = [
        [
            each.variant,
            f"{each.threshold:g}",
            str(each.batch_size),
            _range(each.interval),
            f"{each.least:g}",
            *(_number(each.predicted[name]) for name in SHOWN),
            _factor(each.factor(BEST)),
        ]
        for each in found
    ]
    return _table(head, rows)


def score_table(found: Iterable[Score]) -> list[str]:
    shares = [f"within {most:g}" for most in WITHIN]
    of_least = ["median to least", *(f"{share} of least" for share in shares)]
    head = ["estimator", "cases", "none", "median", "worst", *shares, *of_least, "bias", "RMS log"]
    rows = [
        [
            each.estimator,
            str(each.cases),
            str(each.without),
            f"{each.median:.2f}",
            f"{each.worst:.1f}",
            *(f"{share:.0%}" for share in each.within),
            f"{each.median_to_least:.2f}",
            *(f"{share:.0%}" for share in each.within_of_least),
            f"{each.bias:.2f}",
            f"{each.rms:.2f}",
        ]
        for each in found
    ]
    return _table(head, rows)


def ranges_lines(found: Sequence[Case]) -> list[str]:
    """What the factors of a table are to: how many ranges have an open end, where a prediction on
    that side is not seen to be off."""
    below = sum(each.interval[0] == 0 for each in found)
    above = sum(math.isinf(each.interval[1]) for each in found)
    widened = sum(each.is_widened for each in found)
    own = [(each.own_interval, each.least) for each in found if each.own_interval is not None]
    held = sum(low <= least <= high for (low, high), least in own)
    return [
        f"- {len(found)} measured ranges (90 % intervals of b*): {below} open below, {above} open "
        f"above; {widened} widened to the batch size with the least K·b.",
        "- In an open range no prediction on that side counts as off. `least` is the batch size "
        "with the least K·b.",
        f"- The prediction's own 90 % interval holds the least K·b in {held} of {len(own)} cases.",
    ]


def learning_rate_table(found: Iterable[Case]) -> list[str]:
    """b* against the learning rate: measured, and predicted from the runs of each curve."""

    def curve(each: Case) -> tuple[float, str, float]:
        return -each.threshold, each.optimizer, each.lr or 0.0

    rows = []
    for (threshold, optimizer, lr), own in groupby(sorted(found, key=curve), curve):
        cases = list(own)
        values = sorted(value for each in cases if (value := each.predicted[BEST]) is not None)
        told = " to ".join(dict.fromkeys(map(_number, (values[0], values[-1])))) if values else "-"
        rows.append([optimizer, f"{-threshold:g}", f"{lr:g}", _range(cases[0].interval),
                     f"{cases[0].least:g}", told])  # fmt: skip
    return _table(["optimizer", "loss", "lr", "measured b*", "least K·b", "predicted b*"], rows)


def rate_table(found: Sequence[RateCurve]) -> list[str]:
    """The best learning rate of a single step against the batch size."""
    sizes = sorted({size for each in found for size in each.rates})
    rows = [
        [each.optimizer, f"{each.threshold:g}", each.name]
        + ["" if size not in each.rates else _rate(each.rates[size]) for size in sizes]
        for each in found
    ]
    return _table(["optimizer", "loss", "best learning rate at b =", *map(str, sizes)], rows)


def branch_table(records: Iterable[NoiseRecord]) -> list[str]:
    """Of runs with branches: the local critical batch size as the loss falls, and a schedule."""
    lines: list[str] = []
    for record in records:
        probes = [each for each in record.probes if each.branches]
        rows = [
            [
                f"{each.step:,}",
                f"{each.loss:.3g}",
                _number(each.local_critical_batch),
                _range(each.local_critical_batch_interval or (0.0, math.inf)),
                _number(each.noise_level),
                each.local_critical_batch_reason or "",
            ]
            for each in probes
        ]
        if rows:
            head = ["step", "loss", "local b*", "90 % interval", "noise level N", "why none"]
            lines += [f"{record.variant}, b = {record.batch_size}, seed {record.seed}", ""]
            lines += _table(head, rows)
            lines += ["", schedule_line(record.schedule, record.probes) or "", ""]
    return lines[:-1]


def theorem_table(records: Iterable[NoiseRecord]) -> list[str]:
    """Theorem 3.1 with measured constants: a column per variant, over its seeds."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.theorem is not None and "bound" in record.theorem:
            known = record.theorem | record.theorem["terms"]
            found.setdefault(f"{record.variant}, b = {record.batch_size}", []).append(known)
    if not found:
        return []
    rows = [
        [name, *(_span([each.get(name) for each in own]) for own in found.values())]
        for name in OF_THEOREM
    ]
    return _table(["", *found], rows)


def _span(values: Sequence[Any]) -> str:
    known = [float(each) for each in values if each is not None]
    if not known:
        return "none"
    return " to ".join(dict.fromkeys(f"{each:.3g}" for each in (min(known), max(known))))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(visible(cell).replace('|', '/') for cell in cells)} |"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _range(interval: tuple[float, float]) -> str:
    low, high = interval
    if (low, math.isinf(high)) == (0, True):
        return "-"
    if low == 0:
        return f"up to {_number(high)}"
    return f"{_number(low)} and more" if math.isinf(high) else f"{_number(low)} to {_number(high)}"
