"""What the probes of single runs predict, beside what a curve measured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.noise.best_rate import overshoots
from cbs_lightning.noise.prediction import BEST, predict
from cbs_lightning.noise.record import FILE, Interval, NoiseRecord
from cbs_lightning.results.result import Run

LARGEST_FILE = 50_000_000  # bytes; a usual one has 30,000
MOST_SHOWN = 3  # predictions in a line


@dataclass(frozen=True)
class RunPrediction:
    """b* of a curve, predicted by the probes of one of its runs."""

    batch_size: int  # of the run
    seed: int
    config_hash: str
    critical_batch: float | None
    interval: Interval | None  # 90 %
    reason: str | None  # why there is none
    b_simple: float | None
    estimators: dict[str, float | None]  # b* by every estimator
    overshoots: bool | None  # whether a step of the full gradient raises the loss; None: not known

    def describe(self) -> str:
        run = f"from the run at b = {self.batch_size}"
        if self.critical_batch is None:
            return f"none {run} ({self.reason})"
        span = ""
        if self.interval is not None:
            low, high = self.interval
            span = f", 90 % interval {low:.3g} to {high:.3g}"
        return f"{self.critical_batch:.3g} ({run}{span})"


def read_records(runs: Iterable[Run]) -> tuple[dict[str, NoiseRecord], list[str]]:
    """What probes measured, by `config_hash`; and a line for each file that cannot be read."""
    found, lines = {}, []
    for run in runs:
        path = run.directory / FILE
        try:
            if path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_size > LARGEST_FILE:
                raise ValueError(f"{path.stat().st_size:,} bytes, too large to be one")
            record = NoiseRecord.from_json(path.read_bytes())
            if record.config_hash != run.result.config_hash:
                raise ValueError("of another run")
            found[record.config_hash] = record
        except (ValueError, OSError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            lines.append(f"left out {path}: {reason}; the run is used, its probes are not")
    return found, lines


def predictions_of(curve: Curve, records: Mapping[str, NoiseRecord]) -> tuple[RunPrediction, ...]:
    """What every run of a curve with probes predicts at the curve's threshold.

    A prediction holds for the run's learning rate. If that changes along the curve, there are none;
    nor has a tuned curve any, whose runs are those of others.
    """
    runs = [run for point in curve.points for run in point.runs]
    if len({run.lr for run in runs}) > 1 or any(run.variant != curve.variant for run in runs):
        return ()
    found = []
    for run in runs:
        if (record := records.get(run.config_hash)) is None:
            continue
        estimates = predict(record, curve.threshold)
        best = estimates[BEST]
        found.append(
            RunPrediction(
                batch_size=run.batch_size,
                seed=record.seed,
                config_hash=run.config_hash,
                critical_batch=best.critical_batch,
                interval=best.interval,
                reason=best.reason,
                b_simple=estimates["b_simple"].critical_batch,
                estimators={name: each.critical_batch for name, each in estimates.items()},
                overshoots=overshoots(record, curve.threshold),
            )
        )
    return tuple(found)


def prediction_sentences(predictions: Iterable[RunPrediction]) -> list[str]:
    """A sentence for the answer; empty without a prediction."""
    all_of_them = list(predictions)
    if not all_of_them:
        return []
    shown = "; ".join(each.describe() for each in all_of_them[:MOST_SHOWN])
    more = len(all_of_them) - MOST_SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    scales = [each.b_simple for each in all_of_them if each.b_simple is not None]
    simple = f"; B_simple = {_span(scales)}" if scales else ""
    return [f"Predicted from one run: b* = {shown}{rest}{simple}."]


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3g}" if math.isclose(low, high, rel_tol=0.05) else f"{low:.3g} to {high:.3g}"
