"""One of the paper's studies, from its published files, with a user's own runs beside them."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np

from cbs_lightning.analysis.loss_curves import LossCurve
from cbs_lightning.analysis.study import Study
from cbs_lightning.analysis.summary import summary_rows
from cbs_lightning.reporting.paper.cells import YOURS, PaperStudy
from cbs_lightning.reporting.published import (
    Epoch,
    epochs_of,
    published_files,
    read_epochs,
    read_results,
)
from cbs_lightning.results.result import UNFINISHED, Request, Result
from cbs_lightning.results.store import read_study
from cbs_lightning.results.trajectory import RuleName

Row = TypeVar("Row", Result, Epoch)


@dataclass(frozen=True, eq=False, kw_only=True)
class PublishedStudy(Study):
    """A study whose runs are known by their answers and by their mean loss in every epoch."""

    paper: PaperStudy
    published: list[Result] = field(repr=False)
    epochs: list[Epoch] = field(repr=False)

    @cached_property
    def request(self) -> Request:
        return Request(self.paper.threshold, RuleName.EPOCH, self.paper.data_size)

    @cached_property
    def answers(self) -> list[Result]:
        asked = self.request
        return [
            row
            for row in self.published
            if row.threshold == asked.threshold and row.rule is asked.rule
        ]

    @cached_property
    def rows(self) -> list[Result]:
        return self.published

    @cached_property
    def loss_curves(self) -> dict[str, list[LossCurve]]:
        found: dict[str, list[LossCurve]] = {}
        answers = {(row.variant, row.config_hash): row for row in self.answers}
        for key, group in groupby(self.epochs, lambda row: (row.variant, row.config_hash)):
            own, answer = list(group), answers.get(key)
            if answer is None:
                continue  # it ended before the threshold could be told
            steps = np.array([row.epoch for row in own]) * answer.steps_per_epoch
            loss = np.array([row.loss for row in own])
            found.setdefault(answer.variant, []).append(LossCurve(answer, steps, loss))
        return found


def read_published(
    paper: PaperStudy, folder: Path, output_dir: Path | None = None
) -> PublishedStudy:
    """The published runs of a study, and the finished ones below `output_dir`.

    Raises `UserError` that names file, row and column for a value that no run can have written.
    """
    results, epochs = published_files(folder, paper.name)
    rows = read_results(results) if results.exists() else []
    losses = read_epochs(epochs) if epochs.exists() else []
    if output_dir is not None and (output_dir / paper.name).is_dir():
        runs, broken = read_study(output_dir / paper.name)
        runs = [run for run in runs if run.result.ended not in UNFINISHED]
        rows += [_yours(row) for row in summary_rows(runs)] if runs else []
        losses += [_yours(epoch) for run in runs for epoch in epochs_of(run)]
    else:
        broken = []
    known = {row.config_hash for row in rows}
    losses = [row for row in losses if row.config_hash in known]
    directory = folder / paper.name
    return PublishedStudy(directory, [], broken, paper=paper, published=rows, epochs=losses)


def _yours(row: Row) -> Row:
    return replace(row, variant=f"{row.variant}{YOURS}")
