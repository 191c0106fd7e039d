"""A search: rounds of jobs, until the critical batch size of every combination is known."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from cbs_lightning.checks import check
from cbs_lightning.errors import UserError
from cbs_lightning.job_loader import Job
from cbs_lightning.jobs import AtATime
from cbs_lightning.most_sfo import MostSfo
from cbs_lightning.results import Result, Run, readable
from cbs_lightning.run import answer_from_store, find_data, run_directory, stored_run
from cbs_lightning.search import Search, Verdict
from cbs_lightning.search_settings import GROUP, SearchSettings
from cbs_lightning.sweep import Sweep, has_failed, quoted
from cbs_lightning.trials import Trial
from cbs_lightning.wording import count_of, duration, say

FOLDER = "_search"  # in a study: what a search tells its jobs
ALL_FAILED = Verdict(known=False, batch_size=None, interval=None, told="A run failed everywhere.")
Cell = tuple[int, int]  # effective batch size, seed


@dataclass
class Combination:
    """The search for one combination of the other swept keys; what it knows is on the disk."""

    name: str
    search: Search
    jobs: dict[Cell, Job]
    configs: dict[Cell, DictConfig]
    most_sfo: MostSfo
    failed: set[Cell] = field(default_factory=set)
    answers: dict[Cell, Result] = field(default_factory=dict)
    gradients: int = 0  # that all stored runs cost

    def look(self) -> None:
        """Read what is known by now, and lower the bound for runs that are under way."""
        stored = {cell: run for cell, cfg in self.configs.items() if (run := stored_run(cfg))}
        self.gradients = sum(run.result.steps_run * size for (size, _), run in stored.items())
        answers = self._answers(stored)
        reached = {cell: found for cell, found in answers.items() if found.steps is not None}
        self.most_sfo.write(self.search.most_sfo(_trials(reached)))
        self.answers = self._answers(stored)  # some may be beyond the bound now

    def _answers(self, stored: dict[Cell, Run]) -> dict[Cell, Result]:
        found = {cell: answer_from_store(self.configs[cell], run) for cell, run in stored.items()}
        return {cell: result for cell, result in found.items() if result is not None}

    def verdict(self) -> Verdict:
        left = self._left
        return left.verdict(_trials(self.answers)) if left else ALL_FAILED

    def propose(self, count: int) -> list[Cell]:
        left = self._left
        found = left.propose(_trials(self.answers), count) if left else []
        return [(each.batch_size, each.seed) for each in found]

    def told(self) -> str:
        """What is known by now."""
        reached = [found.sfo for found in self.answers.values() if found.sfo is not None]
        bound, costs = self.most_sfo.read(), ""
        if reached and bound is not None:
            costs = f" Least K·b: {min(reached):,}, given up beyond {bound:,.0f}."
        return f"{self.name}: {self.verdict().told}{costs}"

    @property
    def _left(self) -> Search | None:
        """The search without batch sizes of which a run failed: it would fail again."""
        failed = {size for size, _ in self.failed}
        sizes = tuple(size for size in self.search.batch_sizes if size not in failed)
        return replace(self.search, batch_sizes=sizes) if sizes else None


def _trials(answers: dict[Cell, Result]) -> list[Trial]:
    return [
        Trial(size, seed, found.steps, found.steps_answered, found.loss)
        for (size, seed), found in answers.items()
    ]


def combinations(
    named: dict[Job, DictConfig], settings: SearchSettings, config_of: Callable[[Job], DictConfig]
) -> list[Combination]:
    """Of the jobs that the command line and the grid name; they may name batch sizes and seeds."""
    for cfg in named.values():
        check(cfg, here=False)  # as far as data are looked for; the rest is asked of all jobs
    groups: dict[Job, list[Job]] = {}
    for job in named:
        groups.setdefault(_without(job, "batch_size", "seed"), []).append(job)
    variants = [named[jobs[0]].names.variant for jobs in groups.values()]
    data_sizes: dict[str, int] = {}
    found = []
    for others, jobs in groups.items():
        cfg = named[jobs[0]]
        kind = OmegaConf.to_yaml(cfg.data)
        if kind not in data_sizes:
            data_sizes[kind] = _data_size(cfg)
        names_sizes = any(_without(job, "batch_size") != job for job in jobs)
        wanted = [named[job].batch_size for job in jobs] if names_sizes else None
        sizes = {
            min(size, data_sizes[kind]): size
            for size in settings.batch_sizes(wanted, data_sizes[kind])
        }
        seeds = tuple(sorted({named[job].seed for job in jobs}))
        most_sfo = MostSfo(_most_sfo_file(cfg, others, settings))
        bound = f"sweep.most_sfo_file={quoted(str(most_sfo.path))}"
        own = {
            (effective, seed): (*others, f"batch_size={size}", f"seed={seed}", bound)
            for effective, size in sizes.items()
            for seed in seeds
        }
        variant = cfg.names.variant
        found.append(
            Combination(
                name=variant if variants.count(variant) == 1 else f"{variant} ({' '.join(others)})",
                search=Search(tuple(sizes), seeds, settings.octaves, settings.give_up),
                jobs=own,
                configs={cell: config_of(job) for cell, job in own.items()},
                most_sfo=most_sfo,
            )
        )
    return found


def _without(job: Job, *keys: str) -> Job:
    return tuple(each for each in job if each.partition("=")[0].lstrip("+") not in keys)


def _data_size(cfg: DictConfig) -> int:
    data = find_data(cfg)
    data.setup("fit")
    return len(data.split.train)


def _most_sfo_file(cfg: DictConfig, others: Job, settings: SearchSettings) -> Path:
    """The same for the same search, whoever calls it."""
    text = "\n".join([*others, OmegaConf.to_yaml(cfg.stop), str(settings.give_up)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return run_directory(cfg).parent / FOLDER / f"{readable(cfg.names.variant)}-{digest}"


class SearchSweep(Sweep):
    """Rounds of jobs, each of as many as run at a time; nothing that is known is trained."""

    def search(
        self,
        named: dict[Job, DictConfig],
        settings: SearchSettings,
        config_of: Callable[[Job], DictConfig],
    ) -> list[Result | None]:
        """The results that it rests on, None where a run failed; `named` is the command line's.

        Raise `UserError` if no run reached the threshold.
        """
        self.budget = settings.budget
        self.combinations = combinations(named, settings, config_of)
        configs = {
            job: each.configs[cell] for each in self.combinations for cell, job in each.jobs.items()
        }
        at_a_time = self.check(configs)
        self._look()
        self._began, self._runs = time.monotonic(), 0
        self._known_before = sum(len(each.answers) for each in self.combinations)
        self._gradients_before = self._stored_gradients()
        self._say_beginning(at_a_time)
        with self.watched(configs):
            self.on_finished.insert(0, self._look)
            limit = self._rounds()
        return self._end(limit)

    def _look(self) -> None:
        for each in self.combinations:
            each.look()

    def _rounds(self) -> str | None:
        """Run them; what part of the budget is used up, if that is why they ended."""
        number = 0
        while unknown := self._unknown():
            if limit := self.budget.used_up(*self._spent()):
                return limit
            share = max(1, self._together() // len(unknown))
            wanted = [(each, cell) for each in unknown for cell in each.propose(share)]
            wanted = wanted[: self._runs_left()]
            if not wanted:
                break
            number += 1
            self._say_round(number, wanted)
            found = self.launch({each.jobs[cell]: each.configs[cell] for each, cell in wanted})
            self._runs += len(wanted)
            for (each, cell), result in zip(wanted, found, strict=True):
                if has_failed(result):
                    each.failed.add(cell)
            self._look()
        return None

    def _together(self) -> int:
        """How many jobs run at the same time, here or on a cluster's machines."""
        elsewhere: int = self.config.hydra.launcher.get("array_parallelism", 1)
        return max(self.workers, elsewhere)

    def _unknown(self) -> list[Combination]:
        return [each for each in self.combinations if not each.verdict().known]

    def _stored_gradients(self) -> int:
        return sum(each.gradients for each in self.combinations)

    def _spent(self) -> tuple[int, int, float]:
        """Runs, gradients and hours, since the search was called."""
        gradients = self._stored_gradients() - self._gradients_before
        return self._runs, gradients, (time.monotonic() - self._began) / 3600

    def _runs_left(self) -> int | None:
        return self.budget.runs - self._runs if self.budget.runs is not None else None

    def _end(self, limit: str | None) -> list[Result | None]:
        found: dict[Job, Result | None] = {}
        configs: dict[Job, DictConfig] = {}
        for each in self.combinations:
            for cell, job in each.jobs.items():
                if cell in each.answers or cell in each.failed:
                    configs[job], found[job] = each.configs[cell], each.answers.get(cell)
        self.report(configs, list(found.values()))
        for each in self.combinations:
            say(f"{each.name}: {each.verdict().told}")
        if limit is not None:
            names = ", ".join(each.name for each in self._unknown())
            say(f"The budget is used up ({GROUP}.{limit}): b* is not known yet for {names}.")
        say(f"The search took {self._spent_in_words()}; {self._known_in_words()}.")
        if limit is None and not any(run and run.steps is not None for run in found.values()):
            raise UserError(_nothing_reached(found.values()))
        if any(each.failed for each in self.combinations):
            raise SystemExit(1)
        return list(found.values())

    def _say_beginning(self, at_a_time: AtATime) -> None:
        for each in self.combinations:
            say(f"{each.name}: {_range_in_words(each.search)}")
        what = "a search" if len(self.combinations) == 1 else f"{len(self.combinations)} searches"
        say(f"{what}, {at_a_time}; {self._known_in_words()}")

    def _say_round(self, number: int, wanted: Sequence[tuple[Combination, Cell]]) -> None:
        say(f"Round {number}, after {self._spent_in_words()}:")
        for each in self.combinations:
            if cells := [cell for owner, cell in wanted if owner is each]:
                say(f"  {each.told()} Next: {_cells_in_words(each, cells)}.")

    def _spent_in_words(self) -> str:
        """With the budget's limits, where it has some."""
        runs, gradients, hours = self._spent()
        budget = self.budget
        told = {
            count_of(runs, "run"): budget.runs and f"{budget.runs:,}",
            f"{gradients:,} gradients": budget.gradients and f"{budget.gradients:,}",
            duration(3600 * hours): budget.hours and f"{budget.hours:g} h",
        }
        return ", ".join(f"{spent} of {most}" if most else spent for spent, most in told.items())

    def _known_in_words(self) -> str:
        if not self._known_before:
            return "nothing was known before"
        runs = count_of(self._known_before, "run")
        return f"{runs} and {self._gradients_before:,} gradients were known before"


def _range_in_words(search: Search) -> str:
    sizes = search.batch_sizes
    seeds = f", seeds {', '.join(map(str, search.seeds))}" if len(search.seeds) > 1 else ""
    within = "an octave" if search.octaves == 1 else f"{search.octaves:g} octaves"
    return f"{len(sizes)} batch sizes from {sizes[0]} to {sizes[-1]}{seeds}, b* within {within}"


def _cells_in_words(each: Combination, cells: Sequence[Cell]) -> str:
    several = len(each.search.seeds) > 1
    return ", ".join(
        f"b = {each.configs[cell].batch_size}" + (f" seed {cell[1]}" if several else "")
        for cell in cells
    )


def _nothing_reached(found: Iterable[Result | None]) -> str:
    runs = [run for run in found if run is not None]
    losses = [(run.loss, run.batch_size, run.variant) for run in runs if run.loss is not None]
    if not losses:
        return "no run of the search has a loss that is finite"
    loss, batch_size, variant = min(losses)
    return (
        f"stop.loss={runs[0].threshold:g}: no run of the search reached it; the closest was "
        f"{loss:.3g} at b = {batch_size} ({variant})"
    )
