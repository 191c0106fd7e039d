"""From gradients of independent batches to |G|², tr Σ and the noise scales.

With M batches of m samples, the variance of a coordinate over the batches is unbiased for Σᵢᵢ/m,
and |mean|² less its own noise, tr Σ/(Mm), is unbiased for |G|²: it is the mean of gᵢ·gⱼ over all
pairs i ≠ j. Standard errors and intervals are from leaving out one group of batches at a time.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from scipy.special import stdtrit
from torch import Tensor

GROUPS = 10  # of batches, at most, to leave out one at a time
LEVEL = 0.9  # of intervals


class GradientSums:
    """Takes gradients, in rows, of batches of `batch_size` samples.

    `scale` is the optimizer's metric P, a factor per weight; None: it is not known. Batches are
    summed up in at most `GROUPS` groups, as even as can be, so memory does not grow with their
    number.
    """

    def __init__(self, batches: int, batch_size: int, scale: Tensor | None = None) -> None:
        if batches < 2:
            raise ValueError(f"gradients of at least 2 batches are needed, not of {batches}")
        self.batch_size = batch_size
        self.batches = batches
        self.groups = min(GROUPS, batches)
        edges = [group * batches // self.groups for group in range(self.groups + 1)]
        self.members = [range(start, end) for start, end in pairwise(edges)]  # batches, by group
        self.scale = scale
        self.losses: list[float] = []
        self._sums: list[Tensor] = []  # of gradients, by group
        self._squares: list[tuple[float, float]] = []  # sums of |g|² and gᵀPg, by group
        self._first: Tensor | None = None
        self._spread: Tensor | None = None  # sum of (g - first)²
        self._added = 0

    def add(self, loss: float, gradient: Tensor) -> None:
        if self._first is None or self._spread is None:
            self._first, self._spread = gradient.clone(), torch.zeros_like(gradient)
        if self._added == self.members[len(self._sums) - 1].stop or not self._sums:
            self._sums.append(torch.zeros_like(gradient))
            self._squares.append((0.0, 0.0))
        self._added += 1
        self.losses.append(loss)
        self._sums[-1].add_(gradient)
        away = gradient - self._first
        self._spread.addcmul_(away, away)
        plain, weighed = self._squares[-1]
        in_metric = _dot(gradient, gradient, self.scale) if self.scale is not None else math.nan
        self._squares[-1] = (plain + _dot(gradient, gradient), weighed + in_metric)

    @cached_property
    def mean(self) -> Tensor:
        return torch.stack(self._sums).sum(0) / self.batches

    def group_means(self) -> list[Tensor]:
        return [each / len(batches) for each, batches in zip(self._sums, self.members, strict=True)]

    def samples_of(self, group: int) -> int:
        return len(self.members[group]) * self.batch_size

    @cached_property
    def deviations(self) -> Tensor:
        """The standard deviation of a single sample's gradient, by coordinate."""
        assert self._first is not None and self._spread is not None
        away = self.mean - self._first
        variance = (self._spread - self.batches * away.square()) / (self.batches - 1)
        # A root of a variance over so few is too small in the mean, by this factor.
        few = 1 - 1 / (4 * (self.batches - 1))
        return (variance.clamp(min=0) * self.batch_size).sqrt() / few

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """By the names of a `Probe`."""
        found = {
            "batch_size": self.batch_size, "batches": self.batches, **self._scales(metric=False),
        }  # fmt: skip
        if self.scale is not None:
            in_metric = self._scales(metric=True)
            found |= {f"metric_{name}": value for name, value in in_metric.items()}
            found["preconditioned_noise_trace"] = in_metric["noise_trace"]
            found.pop("metric_noise_trace_se", None)
        return found

    def _scales(self, *, metric: bool) -> dict[str, Any]:
        scale = self.scale if metric else None
        whole, left = self._moments([each[metric] for each in self._squares], scale)
        ratio = Jackknife.of([log_ratio(each) for each in left])
        b_simple = whole.noise_trace / whole.norm2 if whole.norm2 > 0 else None
        return {
            "gradient_norm2": whole.norm2,
            "gradient_norm2_se": Jackknife.of([each.norm2 for each in left]).se,
            "noise_trace": whole.noise_trace,
            "noise_trace_se": Jackknife.of([each.noise_trace for each in left]).se,
            "b_simple": b_simple,
            "b_simple_interval": ratio.interval_around(b_simple),
            "l1_noise_scale": self._l1_noise_scale(scale),
        }

    def _moments(
        self, squares: list[float], scale: Tensor | None
    ) -> tuple["Moments", list["Moments"]]:
        """Of all batches, and with each group left out."""
        rows = torch.stack(self._sums)
        rows = rows.double() if rows.device.type != "mps" else rows
        products = (rows if scale is None else rows * scale) @ rows.T
        of_total, with_total = float(products.sum()), products.sum(1).tolist()
        own = products.diagonal().tolist()
        left = [
            Moments.of(
                of_total - 2 * with_total[at] + own[at],
                sum(squares) - squares[at],
                self.batches - len(members),
                self.batch_size,
            )
            for at, members in enumerate(self.members)
            if self.batches - len(members) > 1
        ]
        return Moments.of(of_total, sum(squares), self.batches, self.batch_size), left

    def _l1_noise_scale(self, scale: Tensor | None) -> float | None:
        """‖G‖₁ by the signs of the other groups' sum, which noise lowers instead of raising."""
        weight = scale.sqrt() if scale is not None else None
        total = self.mean * self.batches
        found = [_dot(each, torch.sign(total - each), weight) for each in self._sums]
        norm = sum(found) / self.batches
        noise = float((self.deviations * weight if weight is not None else self.deviations).sum())
        return (noise / norm) ** 2 if norm > 0 else None


@dataclass(frozen=True)
class Moments:
    norm2: float  # of the mean gradient
    noise_trace: float

    @classmethod
    def of(cls, of_total: float, squares: float, batches: int, batch_size: int) -> "Moments":
        """From the squared norm of the gradients' sum, and the sum of their squared norms."""
        variance = (squares - of_total / batches) / (batches - 1)
        return cls((of_total - squares) / (batches * (batches - 1)), variance * batch_size)


@dataclass(frozen=True)
class Jackknife:
    """The standard error of a value, from what it is with each group left out; None: not known."""

    se: float | None
    groups: int = 0

    @classmethod
    def of(cls, left: list[float]) -> "Jackknife":
        if len(left) < 2 or not all(map(math.isfinite, left)):
            return cls(None)
        mean = sum(left) / len(left)
        spread = sum((each - mean) ** 2 for each in left)
        return cls(math.sqrt(spread * (len(left) - 1) / len(left)), len(left))

    def interval_around(self, value: float | None) -> tuple[float, float] | None:
        """90 %, of a value whose logarithm this is of, by Student's distribution."""
        if value is None or value <= 0 or self.se is None:
            return None
        wide = float(stdtrit(self.groups - 1, (1 + LEVEL) / 2))
        factor = math.exp(min(wide * self.se, 700.0))
        return value / factor, value * factor


def log_ratio(moments: Moments) -> float:
    if moments.norm2 <= 0 or moments.noise_trace <= 0:
        return math.nan
    return math.log(moments.noise_trace / moments.norm2)


def _dot(one: Tensor, other: Tensor, weight: Tensor | None = None) -> float:
    product = one * other if weight is None else one * other * weight
    precise = torch.float64 if product.device.type != "mps" else torch.float32
    return float(product.sum(dtype=precise))
