"""Theorem 3.1 by simulation, with the project's own optimizers, where every constant is known.

Many replicas of one problem are one tensor: all three optimizers work on each coordinate alone, so
that the rows of the tensor are independent runs, and a mean over rows is an expectation.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from cbs_lightning.config.composition import compose
from cbs_lightning.theory import constants

SAMPLING_ERROR = 4.0  # standard errors


@dataclass(frozen=True)
class Problem:
    """f(θ) = slope·θ + ½·Σ curvature·θ²; a sample's gradient is off by ±noise per coordinate."""

    slope: Tensor
    curvature: Tensor
    noise: Tensor

    def gradient(self, theta: Tensor) -> Tensor:
        return self.slope + self.curvature * theta

    @property
    def sigma2(self) -> float:
        return float((self.noise**2).sum())


@dataclass(frozen=True)
class Path:
    """θ₀ … θ_{K+1} of every replica, batch gradients, and the optimizer's moments."""

    problem: Problem
    batch_size: int
    theta: Tensor  # (K + 2, replicas, d)
    batch_gradients: Tensor
    moments: Tensor  # m₀ …
    seconds: Tensor  # v₀ …, Adam's before the bias correction
    roots: Tensor  # the diagonal of H₀ …

    @property
    def steps(self) -> int:
        return len(self.theta) - 2

    @property
    def gradients(self) -> Tensor:
        return self.problem.gradient(self.theta[:-1])

    def vi(self, reference: Tensor) -> tuple[float, float]:
        """VI(K, θ), and its standard error."""
        inner = (self.gradients[1:] * (self.theta[1:-1] - reference)).sum(-1).mean(0)
        return float(inner.mean()), float(inner.std() / math.sqrt(len(inner)))

    def known(self, reference: Tensor) -> dict[str, float]:
        """What (A1) and (A2) suppose, as the run itself shows it."""
        away = self.theta - reference
        return {
            "sigma2": self.problem.sigma2,
            "G": float(self.gradients.norm(dim=-1).max()),
            "dist": float(away.norm(dim=-1).max()),
            "theta1_dist2": float((away[1] ** 2).sum(-1).mean()),
        }


def run(problem: Problem, overrides: list[str], steps: int, batch_size: int, start: Tensor) -> Path:
    generator = torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(start.clone())
    optimizer = instantiate(compose(overrides).optimizer, _convert_="all")([theta])
    visited, batches, moments, seconds, roots = [start.clone()], [], [], [], []
    for _ in range(steps + 1):
        signs = torch.randint(0, 2, (batch_size, *start.shape), generator=generator) * 2.0 - 1
        gradient = problem.gradient(theta.detach()) + problem.noise * signs.double().mean(0)
        theta.grad = gradient.clone()
        optimizer.step()
        state = optimizer.state[theta]
        visited.append(theta.detach().clone())
        batches.append(gradient)
        moments.append(state.get("mean", state.get("average", gradient)).clone())
        seconds.append(state.get("square", torch.ones_like(start)).clone())
        roots.append(state.get("maximum", torch.ones_like(start)).sqrt())
    stacked = (torch.stack(values) for values in (visited, batches, moments, seconds, roots))
    return Path(problem, batch_size, *stacked)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


LR = 0.1
STRAIGHT = Problem(double(0.6, -0.8), double(0.0, 0.0), double(1e-3, 1e-3))
BOWL = Problem(double(0.0, 0.0), double(0.05, 0.05), double(0.8, 0.6))


def check_bound(path: Path, reference: Tensor, tight: set[str]) -> None:
    """The bound holds within the sampling error, and would not with a tight constant 10 % less."""
    vi, error = path.vi(reference)
    c = constants("sgd", lr=LR, **path.known(reference))
    slack = SAMPLING_ERROR * error
    assert vi <= c.vi_bound(path.steps, path.batch_size) + slack
    for name in tight:
        wrong = replace(c, **{name: 0.9 * getattr(c, name)})
        assert vi > wrong.vi_bound(path.steps, path.batch_size) + slack, name


def test_sgd_where_c1_and_c3_carry_the_bound():
    # a constant gradient and hardly any noise, against the last iterate: almost an equality
    start = torch.zeros(256, 2, dtype=torch.float64)
    path = run(STRAIGHT, ["optimizer=sgd", f"optimizer.lr={LR}"], 5, 1, start)
    check_bound(path, path.theta[-1].mean(0), {"c1", "c3"})


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_sgd_where_c2_carries_the_bound(batch_size):
    # noise alone, about the minimiser: the stationary spread is C2/b, up to lr·curvature/2
    start = torch.zeros(2048, 2, dtype=torch.float64)
    path = run(BOWL, ["optimizer=sgd", f"optimizer.lr={LR}"], 4000, batch_size, start)
    check_bound(path, double(0.0, 0.0), {"c2"})


def mean_norm2(values: Tensor) -> Tensor:
    """E‖·‖² of every step."""
    return (values**2).sum(-1).mean(-1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb of every step and replica."""
    return (a * b).sum(-1)


SLOPE = Problem(double(0.3, -0.2, 0.1), double(1.0, 0.4, 0.1), double(0.5, 0.4, 0.3))
BETA1, BETA2, STEPS, BATCH = 0.9, 0.99, 150, 4
OVERRIDES = {
    "momentum_ema": ["optimizer=momentum_ema", f"optimizer.momentum={BETA1}"],
    "adam_monotone": [
        "optimizer=adam_monotone",
        f"optimizer.betas=[{BETA1},{BETA2}]",
        "optimizer.eps=1e-30",
    ],
}


@pytest.fixture(scope="module", params=list(OVERRIDES))
def averaged(request) -> tuple[str, Path, Tensor]:
    """A run of an optimizer with momentum, and a θ to compare with."""
    start = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64).repeat(4000, 1)
    overrides = [*OVERRIDES[request.param], f"optimizer.lr={LR}"]
    path = run(SLOPE, overrides, STEPS, BATCH, start)
    return request.param, path, -SLOPE.slope / SLOPE.curvature


def corrections(name: str, path: Path) -> tuple[Tensor, Tensor]:
    """1 - β₁^{k+1} and 1 - β₂^{k+1} for k = 0…K; Momentum has neither correction."""
    k = torch.arange(path.steps + 1, dtype=torch.float64)
    if name == "momentum_ema":
        return torch.ones_like(k), torch.ones_like(k)
    return 1 - BETA1 ** (k + 1), 1 - BETA2 ** (k + 1)


def before(moments: Tensor) -> Tensor:
    """m_{k-1} for k = 0…K, from m₋₁ = 0."""
    return torch.cat((torch.zeros_like(moments[:1]), moments[:-1]))


def test_lemmas_1_and_1_sgd_on_every_path(averaged):
    """Equation (ineq:004), before any expectation: an identity for every replica and step."""
    name, path, reference = averaged
    first, _ = corrections(name, path)
    away, after = path.theta[:-1] - reference, path.theta[1:] - reference
    direction = -path.moments / first[:, None, None] / path.roots
    left = inner(after**2, path.roots)
    right = (
        inner(away**2, path.roots)
        + LR**2 * inner(direction**2, path.roots)
        - 2 * LR * BETA1 / first[:, None] * inner(away, before(path.moments))
        - 2 * LR * (1 - BETA1) / first[:, None] * inner(away, path.batch_gradients)
    )
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)
    # and in expectation the batch's gradient may be replaced by the full one
    difference = inner(away, path.batch_gradients - path.gradients)
    error = difference.std(1) / math.sqrt(difference.shape[1])
    assert (difference.mean(1).abs() <= 5 * error).all()


def test_lemma_bdd(averaged):
    name, path, reference = averaged
    known = path.known(reference)
    per_step = known["sigma2"] / BATCH + known["G"] ** 2
    first, second = corrections(name, path)
    assert (mean_norm2(path.batch_gradients) <= per_step).all()  # equation (A3)
    assert (mean_norm2(path.moments) <= per_step).all()
    direction = path.moments / first[:, None, None] / path.roots
    size = inner(direction**2, path.roots).mean(-1)
    v_star = float(path.seconds.min()) if name == "adam_monotone" else 1.0
    assert (size <= second.sqrt() / (first**2 * math.sqrt(v_star)) * per_step).all()


def test_the_telescoped_sums_and_what_follows(averaged):
    name, path, reference = averaged
    known = path.known(reference)
    first, second = corrections(name, path)
    away, after = path.theta[:-1] - reference, path.theta[1:] - reference
    hat = 1 - BETA1
    root = math.sqrt(known["sigma2"] + known["G"] ** 2)
    # the three parts of equation (key), for k = 1…K
    gamma = first / (2 * LR * BETA1)
    a = gamma * (inner(away**2, path.roots) - inner(after**2, path.roots)).mean(-1)
    direction = path.moments / first[:, None, None] / path.roots
    b = LR * first / (2 * BETA1) * inner(direction**2, path.roots).mean(-1)
    c = -hat / BETA1 * inner(away, path.gradients).mean(-1)
    momenta = inner(away, before(path.moments))
    error = momenta.std(-1) / math.sqrt(momenta.shape[1])
    assert (((a + b + c) - momenta.mean(-1))[1:].abs() <= 5 * error[1:] + 1e-9).all()

    if name == "adam_monotone":
        extra = {
            "beta2": BETA2,
            "d": 3,
            "D": float((path.theta - reference).square().max()),
            "M": float(path.batch_gradients.square().max()),
            "v_star": float(path.seconds.min()),
        }
        assert (path.roots[1:] >= path.roots[:-1]).all()  # label max_1
        assert (path.roots <= math.sqrt(extra["M"])).all()  # equation (v_k)
        supposed = {key: value for key, value in known.items() if key != "theta1_dist2"}
        bound = constants("adam", lr=LR, beta1=BETA1, **supposed, **extra)
        by_step = LR * second.sqrt() / (2 * math.sqrt(extra["v_star"]) * BETA1 * first)
    else:
        bound = constants("momentum", lr=LR, beta1=BETA1, **known)
        by_step = torch.full_like(second, LR / (2 * BETA1))
    per_step = known["sigma2"] / BATCH + known["G"] ** 2
    assert a[1:].sum() <= bound.c1  # equations (a_K_1) and the telescoped sum of Momentum
    assert (b <= by_step * per_step).all()  # equation (B_k)
    assert (c <= hat / BETA1 * known["dist"] * known["G"]).all()  # equation (C_k_1)
    without = bound.c3 - known["dist"] * 2 * root * (1 / BETA1 + 2 * hat)
    assert momenta[1:].mean() <= bound.c1 / path.steps + bound.c2 / BATCH + without
    # equations (M_k) and (M_k_1), and the theorem itself
    now = inner(away, path.moments).mean(-1)
    shift = 2 * known["dist"] * math.sqrt(known["sigma2"] / BATCH + known["G"] ** 2)
    assert (now <= momenta.mean(-1) + hat * shift).all()
    vi = inner(away, path.gradients).mean(-1)
    assert (vi <= now + (1 / BETA1 + hat) * shift).all()
    assert vi[1:].mean() <= bound.vi_bound(path.steps, BATCH)
    if name == "adam_monotone":
        assert vi[1:].mean() <= bound.vi_bound_sum(path.steps, BATCH)


def test_a_bound_that_no_run_can_exceed(averaged):
    """For Momentum and Adam h alone is more than Dist·G, which bounds VI by Cauchy and Schwarz."""
    _, path, reference = averaged
    known = path.known(reference)
    shift = constants("momentum", lr=LR, beta1=BETA1, **known)
    assert path.vi(reference)[0] <= known["dist"] * known["G"] < shift.c3
