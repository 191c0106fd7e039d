"""A study: its runs, read once, and what they show; used by summary, tables, figures and report."""

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path

from cbs_lightning.analysis.conditions import describe_seconds
from cbs_lightning.analysis.curves import Curve, curves
from cbs_lightning.analysis.hyperparameters import Panel, hyperparameter_panels
from cbs_lightning.analysis.loss_curves import LossCurve, loss_curve
from cbs_lightning.analysis.lr_comparison import LrComparison, lr_comparisons, tuned_curves
from cbs_lightning.analysis.predictions import read_records
from cbs_lightning.analysis.recommend import recommend
from cbs_lightning.analysis.recommendation import Recommendation
from cbs_lightning.analysis.summary import summary_rows, usual_request
from cbs_lightning.analysis.thresholds import AcrossThresholds, across_thresholds
from cbs_lightning.commands import option
from cbs_lightning.console import count_of
from cbs_lightning.errors import UserError, did_you_mean
from cbs_lightning.files import file_name, inside
from cbs_lightning.fit.comparison import WITHIN
from cbs_lightning.noise.record import NoiseRecord
from cbs_lightning.results.result import UNFINISHED, Request, Result, Run, answer
from cbs_lightning.results.store import Broken, read_study
from cbs_lightning.results.trajectory import RuleName


@dataclass(frozen=True)
class Question:
    """What is asked of a study; None: what most of its runs were asked for."""

    loss: float | None = None
    rule: RuleName | None = None
    window: int | None = None  # samples
    within: float = WITHIN  # of the least SFO, more, for the range of an answer
    variants: str | None = None  # names separated by commas, * for anything; None: all

    def request(self, usual: Request) -> Request:
        return Request(
            self.loss or usual.threshold, self.rule or usual.rule, self.window or usual.window
        )

    def select(self, runs: list[Run]) -> list[Run]:
        """The runs of `variants`; raises `UserError` for a name that none has."""
        if self.variants is None or not runs:
            return runs
        known = list(dict.fromkeys(run.result.variant for run in runs))
        names = [self.variants] if self.variants in known else self.variants.split(",")
        found: set[str] = set()
        for name in map(str.strip, names):
            alike = {each for each in known if each == name or fnmatchcase(each, name)}
            if not alike:
                study = runs[0].directory.parent.name
                typed = option("variants", name)
                meant = did_you_mean(name, known)
                raise UserError(f"{typed}: {meant}{study} has: {', '.join(known)}")
            found |= alike
        return [run for run in runs if run.result.variant in found]

    def folder(self, usual: Request) -> str:
        """The folder of a study for this question's files; "" for the study's own question.

        >>> usual = Request(0.2, "middle", 450)
        >>> Question(loss=0.2).folder(usual), Question(0.6, RuleName.WINDOW).folder(usual)
        ('', 'loss_0.6_window')
        >>> Question(window=900, variants="adam,sgd*").folder(usual)
        'middle_900_variants_adam,sgd,'
        """
        asked, parts = self.request(usual), []
        if asked.threshold != usual.threshold:
            parts.append(f"loss_{str(asked.threshold).removesuffix('.0')}")
        other_window = asked.window != usual.window and asked.rule is not RuleName.EPOCH
        if other_window or asked.rule is not usual.rule:
            parts.append(f"{asked.rule}_{asked.window}" if other_window else str(asked.rule))
        if self.within != WITHIN:
            parts.append(f"within_{self.within:g}")
        if self.variants is not None:
            parts.append(f"variants_{self.variants}")
        return file_name("_".join(parts)) if parts else ""

    def choice(self, runs: list[Run]) -> list[str]:
        """A line on how the question was chosen, where runs were asked for different things."""
        results = [run.result for run in runs]
        asked = Counter((each.threshold, each.rule, each.window) for each in results)
        if len(asked) < 2 or self.loss or self.rule or self.window:
            return []
        usual = usual_request(runs)
        count = asked[usual.threshold, usual.rule, usual.window]
        other = "the others are answered from their stored losses"
        how = f"{option('loss')} and {option('rule')} ask another question"
        return [f"  {count} of {len(runs)} runs were asked for this, {other}; {how}."]


USUAL = Question()


@dataclass(frozen=True, eq=False)
class Study:
    """The runs below a directory, and what they say together.

    Everything but `rows` and `curves_by_request` answers `request`. Each curve is one object, also
    where several ask for it, so that the forms are fitted to it once. Without any run there is
    nothing to say.
    """

    directory: Path
    runs: list[Run] = field(repr=False)
    broken: list[Broken] = field(repr=False)
    question: Question = USUAL
    folder: str = ""  # for its files, where they do not answer the study's own question

    @property
    def output(self) -> Path:
        """Where its files are written; raises `LinkError` for a link out of the study."""
        return inside(self.directory, self.folder) if self.folder else self.directory

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def request(self) -> Request:
        """What most runs were asked for, unless the question says otherwise."""
        return self.question.request(usual_request(self.runs))

    @property
    def request_in_words(self) -> str:
        return self.request.describe()

    @cached_property
    def answers(self) -> list[Result]:
        """What every run answers to `request`, in the order of `runs`."""
        return [answer(run.result, run.trajectory, self.request) for run in self.runs]

    @cached_property
    def curves(self) -> list[Curve]:
        return curves(self.answers)

    @cached_property
    def recommended_curves(self) -> list[Curve]:
        """The curves, and those with a tuned learning rate."""
        return [*self.curves, *(tuned.curve for tuned in tuned_curves(self.curves))]

    @cached_property
    def recommendations(self) -> list[Recommendation]:
        """One for each of `recommended_curves`."""
        within, records = self.question.within, self.noise_records
        return [recommend(curve, within, records) for curve in self.recommended_curves]

    @property
    def noise_records(self) -> dict[str, NoiseRecord]:
        """What probes measured in its runs, by `config_hash`."""
        return self._noise[0]

    @cached_property
    def _noise(self) -> tuple[dict[str, NoiseRecord], list[str]]:
        return read_records(self.runs)

    @property
    def unread_noise(self) -> list[str]:
        """A line for each `noise.json` that cannot be read."""
        return self._noise[1]

    @cached_property
    def rows(self) -> list[Result]:
        """What every run answers to every threshold by both rules: the rows of `summary.csv`."""
        return summary_rows(self.runs, self.request)

    @cached_property
    def curves_by_request(self) -> dict[tuple[RuleName, float], list[Curve]]:
        """The curves of `rows` by rule and threshold; those that answer `request` are `curves`."""
        found: dict[tuple[RuleName, float], list[Curve]] = {}
        for curve in curves(self.rows):
            found.setdefault((curve.rule, curve.threshold), []).append(curve)
        return found | {(self.request.rule, self.request.threshold): self.curves}

    @cached_property
    def across(self) -> list[AcrossThresholds]:
        """Each variant at every threshold, by the rule of `request`."""
        rule = self.request.rule
        by_this_rule = [own for key, own in self.curves_by_request.items() if key[0] is rule]
        return across_thresholds(
            [row for row in self.rows if row.rule is rule], list(chain.from_iterable(by_this_rule))
        )

    @cached_property
    def loss_curves(self) -> dict[str, list[LossCurve]]:
        """The losses of every run with a reading, by variant."""
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
    def _theorem_lines(self) -> list[str]:
        """How well the theorem describes the thresholds, where there is something to say."""
        joint = {found.variant: found.joint for found in self.across}
        return [
            f"{name}: {fit.describe()}" for name, fit in joint.items() if fit and not fit.reason
        ]

    @property
    def over_batch_sizes(self) -> bool:
        """Whether there is something to draw against the batch size."""
        return not self.panels or any(len(curve.points) > 1 for curve in self.curves)

    def summary_lines(self) -> list[str]:
        """Lines to print: the answers, and what the thresholds and hyperparameters say."""
        return [
            f"{self.name}: {self.request_in_words}, {count_of(len(self.runs), 'run')}",
            *self.question.choice(self.runs),
            *(f"  {line}" for found in self.recommendations for line in found.summary_lines()),
            *(f"  {line}" for line in [describe_seconds(self.recommended_curves)] if line),
            *(f"  {line}" for found in self.lr_comparisons for line in found.summary_lines()),
            *(f"  {line}" for line in self._theorem_lines),
            *(f"  {panel.describe()}" for panel in self.panels),
        ]


def read(directory: Path, question: Question = USUAL) -> tuple[Study | None, list[str]]:
    """The study (None if none of its runs can be read), and the lines of `left_out`."""
    runs, broken = read_study(directory)
    chosen = question.select(runs)
    folder = question.folder(usual_request(chosen)) if chosen else ""
    study = Study(directory, chosen, broken, question, folder)
    return study if study.runs else None, left_out(study)


def left_out(study: Study) -> list[str]:
    """A line for each run that could not be read, is unfinished or gives no answer."""
    lines = [f"skipped {run.directory}: {run.reason}" for run in study.broken]
    if not study.runs:
        return [*lines, f"{study.directory}: no run that can be read"]
    for run, result in zip(study.runs, study.answers, strict=True):
        if result.status in UNFINISHED:
            lines.append(f"{run.directory}: {result.status}")
        elif result.status is None:
            asked = study.request_in_words
            lines.append(f"left out {run.directory}: it stopped too early to answer {asked}")
    return [*lines, *study.unread_noise]
