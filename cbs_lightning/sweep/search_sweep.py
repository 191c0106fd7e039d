"""A search: rounds of jobs, until the critical batch size of every combination is known."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from cbs_lightning.config.identity import run_directory
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.console import count_of, duration, print_line
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.results.result import Result
from cbs_lightning.results.store import CHECKPOINT
from cbs_lightning.search.search import Search
from cbs_lightning.search.settings import GROUP, SearchSettings
from cbs_lightning.sweep.combinations import Cell, Combination, combinations
from cbs_lightning.sweep.sweep import (
    Configs,
    Listener,
    Sweep,
    has_failed,
    print_start,
    report_on,
    shown_in_tensorboard,
)
from cbs_lightning.sweep.sweeper import Overrides
from cbs_lightning.training.run import publish_answer, stored_run


class SearchSweep(Sweep):
    """Runs rounds of jobs, as many in each as run at a time. Finished runs are not repeated."""

    def search(
        self,
        named: Configs,
        settings: SearchSettings,
        config_of: Callable[[Overrides], RunConfig],
    ) -> list[Result | None]:
        """The results that the answer rests on, with None for a run that failed.

        `named` holds the jobs of the command line. Raises `UserError` if no run reached the
        threshold.
        """
        self.budget = settings.budget
        self.combinations = combinations(named, settings, config_of)
        configs = {
            job: each.configs[cell] for each in self.combinations for cell, job in each.jobs.items()
        }
        self.concurrency = self.check(configs)
        self._look()
        self._began, self._runs = time.monotonic(), 0
        self._spent_on: list[tuple[Combination, Cell, int]] = []  # gradients of each run
        self._on_probes = 0  # gradients
        self._known = {
            run_directory(each.configs[cell]): cell[0] * result.steps_run
            for each in self.combinations
            for cell, result in each.answers.items()
        }
        self._print_start(configs)
        with shown_in_tensorboard(configs) as listeners:
            limit = self._rounds([self._look, *listeners])
        return self._end(limit)

    def _look(self) -> None:
        for each in self.combinations:
            with output_errors(Path(next(iter(each.configs.values())).output_dir)):
                each.look()

    def _rounds(self, listeners: Sequence[Listener]) -> str | None:
        """Run the rounds; return which part of the budget ended them, if one did."""
        number = 0
        while unknown := self._unknown():
            if limit := self.budget.used_up(*self._spent()):
                return limit
            wanted = self._deal(unknown)[: self._runs_left()]
            number += 1
            self._print_round(number, wanted)
            before = [_steps_to_go_on_from(each.configs[cell]) for each, cell in wanted]
            found = self._launch_round(wanted, listeners)
            self._runs += len(wanted)
            for (each, cell), result, steps in zip(wanted, found, before, strict=True):
                if has_failed(result):
                    each.has_failed(cell)
                if each.probed is not None and cell == each.probed.cell:
                    self._on_probes += each.probed.gradients()
                if result is not None:
                    self._spent_on.append((each, cell, cell[0] * max(0, result.steps_run - steps)))
            self._look()
        return None

    def _launch_round(
        self, wanted: Sequence[tuple[Combination, Cell]], listeners: Sequence[Listener]
    ) -> list[Result | None]:
        configs = {each.jobs[cell]: each.configs[cell] for each, cell in wanted}
        limits = {
            each.jobs[cell]: limit
            for each, cell in wanted
            if (limit := each.limit_of(cell)) is not None
        }
        return self.launch(configs, self.concurrency, listeners, "round", limits)

    def _deal(self, unknown: list[Combination]) -> list[tuple[Combination, Cell]]:
        """Deal as many runs as there are workers, in turns, and at least one per combination.

        Combinations that differ only in the threshold share runs. The strictest comes first,
        because its runs answer for the others.
        """
        unknown = sorted(unknown, key=lambda each: each.threshold)
        offers = [
            [(each, cell) for cell in each.propose(self.concurrency.runs)] for each in unknown
        ]
        found: dict[Path, tuple[Combination, Cell]] = {}
        for offer in filter(None, chain.from_iterable(zip_longest(*offers))):
            found.setdefault(run_directory(offer[0].configs[offer[1]]), offer)
        return list(found.values())[: max(self.concurrency.runs, len(unknown))]

    def _unknown(self) -> list[Combination]:
        """The combinations for which another run would add something."""
        return [each for each in self.combinations if each.propose(1)]

    def _spent(self) -> tuple[int, int, float]:
        """Runs, gradients and hours since the search started."""
        gradients = self._on_probes + sum(spent for _, _, spent in self._spent_on)
        return self._runs, gradients, (time.monotonic() - self._began) / 3600

    def _runs_left(self) -> int | None:
        return self.budget.runs - self._runs if self.budget.runs is not None else None

    def _end(self, limit: str | None) -> list[Result | None]:
        found: dict[Overrides, Result | None] = {}
        configs: Configs = {}
        for each in self.combinations:
            for cell, job in each.jobs.items():
                if cell in each.answers or cell in each.failed:
                    configs[job], found[job] = each.configs[cell], each.answers.get(cell)
                if cell in each.answers:
                    publish_answer(each.configs[cell], each.limit_of(cell))
        report_on(configs, list(found.values()))
        for each in self.combinations:
            print_line(f"{each.name}: {each.verdict().summary}{each.rates_in_words()}")
        if limit is not None:
            names = ", ".join(each.name for each in self._unknown())
            print_line(
                f"The budget is used up ({GROUP}.{limit}): b* is not known yet for {names}. The "
                "above is the best so far; run the same command to continue with a new budget."
            )
        print_line(f"The search took {self._spent_in_words()}; {self._known_in_words()}.")
        if limit is None and not any(run and run.steps is not None for run in found.values()):
            raise UserError(_nothing_reached(found.values()))
        if any(each.failed for each in self.combinations):
            raise SystemExit(1)
        return list(found.values())

    def _print_start(self, configs: Configs) -> None:
        for each in self.combinations:
            print_line(f"{each.name}: {_range_in_words(each.search)}")
        what = "a search" if len(self.combinations) == 1 else f"{len(self.combinations)} searches"
        line = f"{what}, {self.concurrency}; {self._known_in_words()}"
        print_start(line, configs, self.concurrency)

    def _print_round(self, number: int, wanted: Sequence[tuple[Combination, Cell]]) -> None:
        print_line(f"Round {number}, after {self._spent_in_words()}:")
        for each in self.combinations:
            if cells := [cell for owner, cell in wanted if owner is each]:
                following = ", ".join(map(each.describe, cells))
                print_line(f"  {each.summary()} Next: {following}.")

    def _spent_in_words(self) -> str:
        """What was spent, with the limits of the budget if it has any."""
        runs, gradients, hours = self._spent()
        budget = self.budget
        parts = {
            count_of(runs, "run"): budget.runs and f"{budget.runs:,}",
            f"{gradients:,} gradients": budget.gradients and f"{budget.gradients:,}",
            duration(3600 * hours): budget.hours and f"{budget.hours:g} h",
        }
        words = [f"{spent} of {most}" if most else spent for spent, most in parts.items()]
        words[1] += self._of_which_in_words()
        return ", ".join(words)

    def _of_which_in_words(self) -> str:
        """How much of it went into learning rates that did not win, and into probes."""
        tuning = sum(spent for each, cell, spent in self._spent_on if each.is_tuning(cell))
        parts = {"tuning": tuning, "probes": self._on_probes}
        words = [f"{spent:,} on {what}" for what, spent in parts.items() if spent]
        return f" ({', '.join(words)})" if words else ""

    def _known_in_words(self) -> str:
        if not self._known:
            return "no run was finished before"
        runs = count_of(len(self._known), "run")
        return f"{runs} and {sum(self._known.values()):,} gradients were finished before"


def _range_in_words(search: Search) -> str:
    sizes = search.batch_sizes
    seeds = f", seeds {', '.join(map(str, search.seeds))}" if len(search.seeds) > 1 else ""
    within = "an octave" if search.octaves == 1 else f"{search.octaves:g} octaves"
    return f"{len(sizes)} batch sizes from {sizes[0]} to {sizes[-1]}{seeds}, b* within {within}"


def _steps_to_go_on_from(cfg: RunConfig) -> int:
    """The number of steps that a run need not repeat."""
    stored = stored_run(cfg)
    goes_on = (run_directory(cfg) / CHECKPOINT).exists()
    return stored.result.steps_run if stored is not None and goes_on else 0


def _nothing_reached(found: Iterable[Result | None]) -> str:
    runs = [run for run in found if run is not None]
    if not runs:
        return "every run of the search failed"
    losses = [(run.loss, run.batch_size, run) for run in runs if run.loss is not None]
    if not losses:
        return "no run of the search has a finite loss"
    loss, batch_size, run = min(losses, key=lambda each: each[:2])
    return (
        f"stop.loss={run.threshold:g}: no run of the search reached it; the closest was "
        f"{loss:.3g} at b = {batch_size} ({run.variant})"
    )
