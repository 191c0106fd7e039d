"""What a sweep's search is about: a search for each combination of the other swept keys."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cbs_lightning.config.checks import check
from cbs_lightning.config.identity import run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.errors import ConfigError
from cbs_lightning.files import file_name
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results.result import Result, Run
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.search.search import Search, Verdict
from cbs_lightning.search.settings import SearchSettings
from cbs_lightning.search.trials import Cell, Trial
from cbs_lightning.sweep.sweeper import Overrides, without
from cbs_lightning.training.run import answer_from_store, find_data, request_for, stored_run
from cbs_lightning.training.source import Extent

FOLDER = "_search"  # in a study: what a search tells its jobs

LARGEST_ON_STREAM = 2**16  # samples of a batch, where the data does not limit it


@dataclass
class Combination:
    """The search for one combination of the other swept keys; what it knows is on the disk."""

    name: str
    search: Search
    jobs: dict[Cell, Overrides]
    configs: dict[Cell, RunConfig]
    sfo_limit: SfoLimit
    answers: dict[Cell, Result] = field(default_factory=dict)

    def look(self) -> None:
        """Read what is known by now, and lower the limit for runs that are under way."""
        stored = {cell: run for cell, cfg in self.configs.items() if (run := stored_run(cfg))}
        answers = self._answers(stored)
        reached = {cell: found for cell, found in answers.items() if found.steps is not None}
        self.sfo_limit.write(self.search.sfo_limit(_trials(reached)))
        self.answers = self._answers(stored)  # some may be beyond the limit now

    def _answers(self, stored: dict[Cell, Run]) -> dict[Cell, Result]:
        found = {}
        for cell, run in stored.items():
            request = request_for(self.configs[cell], Extent.of(run.result))
            if (result := answer_from_store(run, request, self.limit_of(cell))) is not None:
                found[cell] = result
        return found

    def limit_of(self, cell: Cell) -> SfoLimit | None:
        _, seed = cell
        return self.sfo_limit if self.search.limit_applies(seed) else None

    @property
    def threshold(self) -> float:
        return next(iter(self.configs.values())).stop.loss

    def verdict(self) -> Verdict:
        return self.search.verdict(_trials(self.answers))

    def propose(self, count: int) -> list[Cell]:
        found = self.search.propose(_trials(self.answers), count)
        return [(each.batch_size, each.seed) for each in found]

    def has_failed(self, cell: Cell) -> None:
        self.search = replace(self.search, failed=self.search.failed | {cell})

    def summary(self) -> str:
        """What is known by now."""
        reached = [found.sfo for found in self.answers.values() if found.sfo is not None]
        limit, costs = self.sfo_limit.read(), ""
        if reached and limit is not None:
            costs = f" Least K·b: {min(reached):,}, given up beyond {limit:,.0f}."
        return f"{self.name}: {self.verdict().summary}{costs}"


def _trials(answers: dict[Cell, Result]) -> list[Trial]:
    return [
        Trial(size, seed, found.steps, found.steps_exceeded, found.loss)
        for (size, seed), found in answers.items()
    ]


def combinations(
    named: dict[Overrides, RunConfig],
    settings: SearchSettings,
    config_of: Callable[[Overrides], RunConfig],
) -> list[Combination]:
    """Of the jobs that the command line and the grid name; they may name batch sizes and seeds."""
    for cfg in named.values():
        if cfg.lr_scaling == Scaling.TUNED:
            reason = "not with hydra/sweeper=critical_batch; allowed with it: linear, none, sqrt"
            raise ConfigError("lr_scaling", cfg.lr_scaling, reason)
        check(cfg, here=False)  # as far as data are looked for; the rest is asked of all jobs
    groups: dict[Overrides, list[Overrides]] = {}
    for job in named:
        groups.setdefault(without(job, "batch_size", "seed"), []).append(job)
    common = set.intersection(*map(set, groups))
    data_sizes: dict[str, int] = {}
    found = []
    for others, jobs in groups.items():
        cfg = named[jobs[0]]
        kind = repr(cfg.data)
        if kind not in data_sizes:
            data_sizes[kind] = _data_size(cfg)
        names_sizes = any(without(job, "batch_size") != job for job in jobs)
        wanted = [named[job].batch_size for job in jobs] if names_sizes else None
        sizes = {
            min(size, data_sizes[kind]): size
            for size in settings.batch_sizes(wanted, data_sizes[kind])
        }
        seeds = tuple(sorted({named[job].seed for job in jobs}))
        search = Search(tuple(sizes), seeds, settings.octaves, settings.give_up)
        own = {
            (effective, seed): (*others, f"batch_size={size}", f"seed={seed}")
            for effective, size in sizes.items()
            for seed in seeds
        }
        found.append(
            Combination(
                name=cfg.names.variant,
                search=search,
                jobs=own,
                configs={cell: config_of(job) for cell, job in own.items()},
                sfo_limit=SfoLimit(_sfo_limit_file(cfg, others, search)),
            )
        )
    names = [each.name for each in found]
    for each, others in zip(found, groups, strict=True):
        if names.count(each.name) > 1:
            each.name += f" ({' '.join(key for key in others if key not in common)})"
    return found


def _data_size(cfg: RunConfig) -> int:
    source = find_data(cfg)
    source.setup()
    return LARGEST_ON_STREAM if source.extent.is_stream else source.extent.size


def _sfo_limit_file(cfg: RunConfig, others: Overrides, search: Search) -> Path:
    """The same for the same search, whoever calls it."""
    text = "\n".join([*others, repr(cfg.stop), repr(search)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return run_directory(cfg).parent / FOLDER / f"{file_name(cfg.names.variant)}-{digest}"
