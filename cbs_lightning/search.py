"""Stand-in: plain bracketing."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Trial:
    batch_size: int
    seed: int
    steps: int | None
    steps_run: int
    loss: float | None

    @property
    def sfo(self) -> int | None:
        return self.steps * self.batch_size if self.steps is not None else None

    @property
    def spent(self) -> int:
        return self.steps_run * self.batch_size


@dataclass(frozen=True)
class Proposal:
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Verdict:
    known: bool
    batch_size: int | None
    interval: tuple[float, float] | None
    told: str


@dataclass(frozen=True)
class Search:
    batch_sizes: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    octaves: float = 1.0
    give_up: float = 1.5

    def most_sfo(self, trials: Sequence[Trial]) -> float | None:
        found = [trial.sfo for trial in trials if trial.sfo is not None]
        return self.give_up * min(found) if found else None

    def _costs(self, trials: Sequence[Trial]) -> dict[int, float]:
        costs: dict[int, float] = {}
        for size in self.batch_sizes:
            own = [t for t in trials if t.batch_size == size]
            if own:
                costs[size] = median(t.sfo or float("inf") for t in own)
        return costs

    def propose(self, trials: Sequence[Trial], count: int) -> list[Proposal]:
        costs = self._costs(trials)
        sizes, wanted = list(self.batch_sizes), []
        middle = len(sizes) // 2
        finite = {b: c for b, c in costs.items() if c < float("inf")}
        if not costs:
            wanted = [sizes[middle]]
        elif not finite:
            wanted = [b for b in reversed(sizes[:middle]) if b not in costs][:1]
            wanted += [b for b in sizes if b not in costs]
        else:
            place = sizes.index(min(finite, key=finite.__getitem__))
            for i in (place + 1, place - 1):
                if 0 <= i < len(sizes) and sizes[i] not in costs:
                    wanted.append(sizes[i])
        done = {(t.batch_size, t.seed) for t in trials}
        found = [Proposal(b, self.seeds[0]) for b in wanted]
        if finite and not wanted:
            best = min(finite, key=finite.__getitem__)
            found = [Proposal(best, s) for s in self.seeds if (best, s) not in done]
        return found[:count]

    def verdict(self, trials: Sequence[Trial]) -> Verdict:
        costs = {b: c for b, c in self._costs(trials).items() if c < float("inf")}
        if not costs:
            return Verdict(False, None, None, "no run reached the threshold")
        best = min(costs, key=costs.__getitem__)
        known = not self.propose(trials, 1)
        return Verdict(
            known,
            best,
            (best, best) if known else None,
            "both neighbours cost more" if known else "a neighbour is not tried yet",
        )
