"""A study: its runs, read once, and what they say; summary, tables, figures and report show it."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.hyperparameters import Panel, hyperparameter_panels
from cbs_lightning.analysis.loss_curves import LossCurve, loss_curve
from cbs_lightning.analysis.lr_comparison import LrComparison, lr_comparisons, tuned_curves
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import Recommendation
from cbs_lightning.analysis.summary import summary_rows, usual_request
from cbs_lightning.analysis.thresholds import AcrossThresholds, across_thresholds
from cbs_lightning.console import count_of
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, answer
from cbs_lightning.results.store import Broken, read_study


@dataclass(frozen=True, eq=False)
class Study:
    """The runs below a directory, at least one. All that is said but `rows` answers `request`."""

    directory: Path
    runs: list[Run] = field(repr=False)
    broken: list[Broken] = field(repr=False)

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def request(self) -> Request:
        """What most runs were asked for."""
        return usual_request(self.runs)

    @property
    def asked(self) -> str:
        return f"loss <= {self.request.threshold:g} by rule {self.request.rule}"

    @cached_property
    def answers(self) -> list[Result]:
        """Of every run, in the same order."""
        return [answer(run.result, run.trajectory, self.request) for run in self.runs]

    @cached_property
    def curves(self) -> list[Curve]:
        return curves(self.answers)

    @cached_property
    def recommendations(self) -> list[Recommendation]:
        """Of each curve, and of those with a tuned learning rate."""
        tuned = [found.curve for found in tuned_curves(self.curves)]
        return [recommend(curve) for curve in [*self.curves, *tuned]]

    @cached_property
    def rows(self) -> list[Result]:
        """Of `summary.csv`: every run's answers to every threshold by both rules."""
        return summary_rows(self.runs)

    @cached_property
    def across(self) -> list[AcrossThresholds]:
        return across_thresholds([row for row in self.rows if row.rule is self.request.rule])

    @cached_property
    def loss_curves(self) -> dict[str, list[LossCurve]]:
        """By variant; of runs that have a reading at all."""
        found: dict[str, list[LossCurve]] = {}
        for run, result in zip(self.runs, self.answers, strict=True):
            curve = loss_curve(run, result)
            if len(curve.steps):
                found.setdefault(result.variant, []).append(curve)
        return found

    @cached_property
    def panels(self) -> list[Panel]:
        return hyperparameter_panels(self.answers)

    @cached_property
    def lr_comparisons(self) -> list[LrComparison]:
        return lr_comparisons(self.curves)

    @property
    def over_batch_sizes(self) -> bool:
        """Whether there is something to draw against the batch size."""
        return not self.panels or any(len(curve.points) > 1 for curve in self.curves)

    def summary_lines(self) -> list[str]:
        """For people: the answer, and what the thresholds and hyperparameters say."""
        return [
            f"{self.name}: {self.asked}, {count_of(len(self.runs), 'run')}",
            *(f"  {line}" for found in self.recommendations for line in found.summary_lines()),
            *(f"  {line}" for found in self.lr_comparisons for line in found.summary_lines()),
            *(f"  {found.variant}: {found.joint.describe()}" for found in self.across),
            *(f"  {panel.describe()}" for panel in self.panels),
        ]


def read(directory: Path) -> tuple[Study | None, list[str]]:
    """The study, None if none of its runs can be read; and lines that tell of what is left out."""
    runs, broken = read_study(directory)
    lines = [f"skipped {run.directory}: {run.reason}" for run in broken]
    if not runs:
        return None, [*lines, f"{directory}: no run that can be read"]
    study = Study(directory, runs, broken)
    for run, result in zip(runs, study.answers, strict=True):
        if result.status in UNFINISHED:
            lines.append(f"{run.directory}: {result.status}")
        elif result.status is None:
            lines.append(f"left out {run.directory}: it stopped before {study.asked} could be told")
    return study, lines
