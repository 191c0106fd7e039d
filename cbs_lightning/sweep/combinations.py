"""The searches of a sweep: one for each combination of the other swept keys."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from cbs_lightning.config.checks import check_all
from cbs_lightning.config.identity import run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.files import file_name
from cbs_lightning.optim.learning_rate import Scaling
from cbs_lightning.results.result import Result, Run, Status
from cbs_lightning.results.sfo_limit import SfoLimit
from cbs_lightning.search.race import Race
from cbs_lightning.search.search import Search, Verdict
from cbs_lightning.search.settings import SearchSettings
from cbs_lightning.search.trials import Trial
from cbs_lightning.sweep.probed import Probed, check_probed
from cbs_lightning.sweep.sweeper import Overrides, without
from cbs_lightning.sweep.tuning import check_tuned, rates_of
from cbs_lightning.training.run import answer_from_store, find_data, request_for, stored_run
from cbs_lightning.training.source import Extent

FOLDER = "_search"  # in a study: what a search tells its jobs

LARGEST_ON_STREAM = 2**16  # samples of a batch, where the data does not limit it

# Effective batch size, seed, and where the learning rate is tuned its place among those tried.
Cell = tuple[int, ...]


@dataclass
class Combination:
    """The search for one combination of the other swept keys; its state is what is on disk."""

    name: str
    search: Search
    jobs: dict[Cell, Overrides]
    configs: dict[Cell, RunConfig]
    sfo_limit: SfoLimit
    answers: dict[Cell, Result] = field(default_factory=dict)
    failed: set[Cell] = field(default_factory=set)
    probed: Probed | None = None  # the first run, where it is to predict b*

    def look(self) -> None:
        """Read the finished runs, and set the limit for those still running."""
        stored = {cell: run for cell, cfg in self.configs.items() if (run := stored_run(cfg))}
        answers = self._answers(stored)
        reached = [_trial(*found) for found in answers.items() if found[1].steps is not None]
        self.sfo_limit.write(self.search.sfo_limit(reached))
        self.answers = self._answers(stored)  # some may be beyond the limit now
        if self.probed is not None:
            self.search = replace(self.search, predicted=self.probed.prediction())

    def _answers(self, stored: dict[Cell, Run]) -> dict[Cell, Result]:
        found = {}
        for cell, run in stored.items():
            request = request_for(self.configs[cell], Extent.of(run.result))
            if (result := answer_from_store(run, request, self.limit_of(cell))) is not None:
                found[cell] = result
        return found

    def limit_of(self, cell: Cell) -> SfoLimit | None:
        return self.sfo_limit if self.search.limit_applies(cell[1]) else None

    @property
    def threshold(self) -> float:
        return next(iter(self.configs.values())).stop.loss

    def verdict(self) -> Verdict:
        return self.search.verdict(self.trials())

    def propose(self, count: int) -> list[Cell]:
        if self.probed is not None and not self.answers and not self.failed:
            return [self.probed.cell]  # alone: the others' places depend on what it predicts
        found = self.search.propose(self.trials(), count)
        return [(each.batch_size, each.seed) for each in found]

    def trials(self) -> list[Trial]:
        """The finished runs, as the search sees them."""
        return [_trial(*found) for found in self.answers.items()]

    def has_failed(self, cell: Cell) -> None:
        self.failed.add(cell)
        self._do_without(cell)

    def _do_without(self, cell: Cell) -> None:
        """Leave out one seed of a batch size."""
        self.search = replace(self.search, failed=self.search.failed | {(cell[0], cell[1])})

    def is_tuning(self, cell: Cell) -> bool:
        """Whether a run only served to choose a learning rate."""
        return False

    def rates_in_words(self) -> str:
        return ""

    def describe(self, cell: Cell) -> str:
        several = len(self.search.seeds) > 1
        return f"b = {self.configs[cell].batch_size}" + (f" seed {cell[1]}" if several else "")

    def summary(self) -> str:
        """The findings so far, in words."""
        limit, costs = self.sfo_limit.read(), ""
        if limit is not None:
            least = limit / self.search.give_up
            costs = f" Least K·b: {least:,.0f}, given up beyond {limit:,.0f}."
        predicted = self.probed.summary() if self.probed is not None else ""
        return f"{self.name}: {self.verdict().summary}{predicted}{costs}"


@dataclass
class TunedCombination(Combination):
    """A search in which a race chooses the learning rate at each batch size.

    A race uses one seed; the other seeds use the rate that won. The search sees a batch size once
    its race is over. Runs of a race are abandoned like other runs, by the smallest K·b so far.
    """

    def verdict(self) -> Verdict:
        found = super().verdict()
        if self.answers and not self.trials():
            return replace(found, summary="The first learning rate is still being chosen.")
        return found

    def trials(self) -> list[Trial]:
        best = {b: self._best_rate(b) for b in self.search.batch_sizes}
        return [
            _trial(cell, found) for cell, found in self.answers.items() if cell[2] == best[cell[0]]
        ]

    def propose(self, count: int) -> list[Cell]:
        found: list[Cell] = []
        for b, seed in super().propose(count):
            best = self._best_rate(b)
            places = self._race(b, seed).propose() if best is None else [best]
            found += [(b, seed, place) for place in places]
        return found[:count]

    def has_failed(self, cell: Cell) -> None:
        """A race does without the rate; a batch size without the seed if no rate is left, or if
        it was the rate that won."""
        best = self._best_rate(cell[0])
        self.failed.add(cell)
        race = self._race(cell[0], cell[1])
        if cell[2] == best or len(race.failed) == race.rates:
            self._do_without(cell)

    def is_tuning(self, cell: Cell) -> bool:
        return cell[2] != self._best_rate(cell[0])

    def describe(self, cell: Cell) -> str:
        return f"{super().describe(cell)} lr {self._rate(cell)}"

    def summary(self) -> str:
        return f"{super().summary()}{self.rates_in_words()}"

    def rates_in_words(self) -> str:
        """The best rate of each batch size whose race is over."""
        best = {b: self._best_rate(b) for b in self.search.batch_sizes}
        seed = self.search.seeds[0]
        found = [
            f"{self._rate((b, seed, place))} at b = {b}"
            for b, place in best.items()
            if place is not None
        ]
        return f" Best learning rates: {', '.join(found)}." if found else ""

    def _rate(self, cell: Cell) -> str:
        return f"{self.configs[cell].optimizer['lr']:g}"

    def _best_rate(self, b: int) -> int | None:
        """The winner of the first finished race at a batch size."""
        for seed in self.search.seeds:
            if (best := self._race(b, seed, start=0).best) is not None:
                return best
        return None

    def _race(self, b: int, seed: int, start: int | None = None) -> Race:
        trials = {
            cell[2]: _trial(cell, found)
            for cell, found in self.answers.items()
            if cell[:2] == (b, seed)
        }
        failed = frozenset(cell[2] for cell in self.failed if cell[:2] == (b, seed))
        begin = self._start(b) if start is None else start
        return Race(len(self._factors), begin, trials, failed)

    @cached_property
    def _factors(self) -> list[float]:
        return sorted(next(iter(self.configs.values())).lr_tuning)

    def _start(self, b: int) -> int:
        """The rate to start a race from: the best at the nearest batch size, else the optimizer's
        own."""
        best = {other: self._best_rate(other) for other in self.search.batch_sizes}
        known = {other: place for other, place in best.items() if place is not None}
        if known:
            return known[min(known, key=lambda other: max(other / b, b / other))]
        return min(range(len(self._factors)), key=lambda place: abs(self._factors[place] - 1))


def _trial(cell: Cell, found: Result) -> Trial:
    abandoned = found.status is Status.ABANDONED
    return Trial(cell[0], cell[1], found.steps, found.steps_exceeded, found.loss, abandoned)


def combinations(
    named: dict[Overrides, RunConfig],
    settings: SearchSettings,
    config_of: Callable[[Overrides], RunConfig],
) -> list[Combination]:
    """The combinations of the jobs on the command line and in the grid."""
    check_tuned(named)
    for job, cfg in named.items():  # as far as data are looked for; the rest is asked of all jobs
        check_probed(cfg, settings.probes)
        if cfg.lr_scaling == Scaling.TUNED:
            rates_of(job, config_of, here=False)
    check_all((cfg for cfg in named.values() if cfg.lr_scaling != Scaling.TUNED), here=False)
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
        found.append(_combination(others, cfg, search, sizes, config_of))
        if settings.probes:
            _probe_first_run(found[-1], settings.probes, config_of)
    names = [each.name for each in found]
    for each, others in zip(found, groups, strict=True):
        if names.count(each.name) > 1:
            each.name += f" ({' '.join(key for key in others if key not in common)})"
    return found


def _combination(
    others: Overrides,
    cfg: RunConfig,
    search: Search,
    sizes: dict[int, int],
    config_of: Callable[[Overrides], RunConfig],
) -> Combination:
    """One combination; `sizes` maps effective batch sizes to those asked for."""
    plain: dict[Cell, Overrides] = {
        (effective, seed): (*others, f"batch_size={size}", f"seed={seed}")
        for effective, size in sizes.items()
        for seed in search.seeds
    }
    limit = SfoLimit(_sfo_limit_file(cfg, others, search))
    if cfg.lr_scaling != Scaling.TUNED:
        configs = {cell: config_of(job) for cell, job in plain.items()}
        return Combination(cfg.names.variant, search, plain, configs, limit)
    jobs: dict[Cell, Overrides] = {}
    tuned: dict[Cell, RunConfig] = {}
    for cell, job in plain.items():
        rates = sorted(
            rates_of(job, config_of, here=False).items(), key=lambda each: each[1].optimizer["lr"]
        )
        for place, (own, own_cfg) in enumerate(rates):
            jobs[*cell, place], tuned[*cell, place] = own, own_cfg
    words = [
        word
        for word in cfg.names.variant.split(" ")
        if not word.startswith(("lr=", "lr_scaling=", "lr_tuning="))
    ]
    return TunedCombination(f"{' '.join(words)} lr tuned", search, jobs, tuned, limit)


def _probe_first_run(
    each: Combination, probes: int, config_of: Callable[[Overrides], RunConfig]
) -> None:
    (cell,) = each.propose(1)
    job = (*without(each.jobs[cell], "noise.probes"), f"noise.probes={probes}")
    each.jobs[cell], each.configs[cell] = job, config_of(job)
    each.probed = Probed(cell, each.configs[cell])


def _data_size(cfg: RunConfig) -> int:
    source = find_data(cfg)
    source.setup()
    return LARGEST_ON_STREAM if source.extent.is_stream else source.extent.size


def _sfo_limit_file(cfg: RunConfig, others: Overrides, search: Search) -> Path:
    """The file of the SFO limit, the same for every call of the same search."""
    text = "\n".join([*others, repr(cfg.stop), repr(search)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return run_directory(cfg).parent / FOLDER / f"{file_name(cfg.names.variant)}-{digest}"
