"""Every optimizer config against its update written out plainly, step by step, in float64."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from cbs_lightning.config.composition import compose

STEPS = 30
Update = Callable[[Tensor, Tensor, int], Tensor]  # theta, gradient, k = 0, 1, ... -> new theta
LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-8, 0.1
OVERRIDES = {
    "sgd": [f"optimizer.lr={LR}"],
    "momentum": [f"optimizer.lr={LR}", f"optimizer.momentum={BETA1}"],
    "momentum_ema": [f"optimizer.lr={LR}", f"optimizer.momentum={BETA1}"],
    **dict.fromkeys(
        ("adam", "amsgrad", "adam_monotone", "adamw"),
        [f"optimizer.lr={LR}", f"optimizer.betas=[{BETA1},{BETA2}]"],
    ),
}
OVERRIDES["adamw"] = [*OVERRIDES["adamw"], f"optimizer.weight_decay={DECAY}"]


def algorithm_1(beta1: float, preconditioner: Callable[[Tensor, int], Tensor]) -> Update:
    """The paper's Algorithm 1 with bias correction; H_k comes from `preconditioner(g, k)`."""
    m = torch.zeros(2, dtype=torch.float64)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m
        m = beta1 * m + (1 - beta1) * gradient
        m_hat = m / (1 - beta1 ** (k + 1))
        return theta - LR * m_hat / preconditioner(gradient, k)

    return update


def identity_matrix(gradient: Tensor, k: int) -> Tensor:
    return torch.ones_like(gradient)


def adam_root(monotone: bool) -> Callable[[Tensor, int], Tensor]:
    v = torch.zeros(2, dtype=torch.float64)
    v_hat = torch.zeros(2, dtype=torch.float64)

    def root(gradient: Tensor, k: int) -> Tensor:
        nonlocal v, v_hat
        v = BETA2 * v + (1 - BETA2) * gradient * gradient
        corrected = v / (1 - BETA2 ** (k + 1))
        v_hat = torch.maximum(v_hat, corrected) if monotone else corrected
        return v_hat.sqrt() + EPS

    return root


def momentum_ema() -> Update:
    """Algorithm 1 as lemma lem:1_sgd uses it: H_k = I and m_k itself, not m_hat_k."""
    m = torch.zeros(2, dtype=torch.float64)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m
        m = BETA1 * m + (1 - BETA1) * gradient
        return theta - LR * m

    return update


def heavy_ball() -> Update:
    """torch's SGD(momentum): Polyak's heavy ball, without dampening."""
    m = torch.zeros(2, dtype=torch.float64)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m
        m = BETA1 * m + gradient
        return theta - LR * m

    return update


def amsgrad() -> Update:
    """torch's Adam(amsgrad=True): the maximum is taken before the bias correction."""
    m, v, v_max = (torch.zeros(2, dtype=torch.float64) for _ in range(3))

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m, v, v_max
        m = BETA1 * m + (1 - BETA1) * gradient
        v = BETA2 * v + (1 - BETA2) * gradient * gradient
        v_max = torch.maximum(v_max, v)
        root = (v_max / (1 - BETA2 ** (k + 1))).sqrt() + EPS
        return theta - LR * m / (1 - BETA1 ** (k + 1)) / root

    return update


def adamw() -> Update:
    """Loshchilov and Hutter (2019), Algorithm 2, with a constant schedule."""
    adam = algorithm_1(BETA1, adam_root(monotone=False))

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        return adam(theta - LR * DECAY * theta, gradient, k)

    return update


REFERENCES: dict[str, Callable[[], Update]] = {
    "sgd": lambda: algorithm_1(0.0, identity_matrix),
    "momentum": heavy_ball,
    "momentum_ema": momentum_ema,
    "adam": lambda: algorithm_1(BETA1, adam_root(monotone=False)),
    "amsgrad": amsgrad,
    "adam_monotone": lambda: algorithm_1(BETA1, adam_root(monotone=True)),
    "adamw": adamw,
}


def gradients() -> Iterator[Callable[[Tensor], Tensor]]:
    """Stochastic gradients of a small quadratic; large ones early, so that v decreases later."""
    rng = torch.Generator().manual_seed(0)
    curvature = torch.tensor([1.0, 3.0], dtype=torch.float64)
    for k in range(STEPS):
        noise = torch.randn(2, generator=rng, dtype=torch.float64) * (4.0 if k < 5 else 0.5)
        yield lambda theta, noise=noise: curvature * theta + noise


def reference_path(name: str) -> list[Tensor]:
    theta, path = torch.tensor([1.0, -2.0], dtype=torch.float64), []
    update = REFERENCES[name]()
    for k, gradient in enumerate(gradients()):
        theta = update(theta, gradient(theta), k)
        path.append(theta)
    return path


def configured_path(name: str) -> list[Tensor]:
    cfg = compose([f"optimizer={name}", *OVERRIDES[name]])
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = instantiate(cfg.optimizer)([theta])
    path = []
    for gradient in gradients():
        theta.grad = gradient(theta.detach())
        optimizer.step()
        path.append(theta.detach().clone())
    return path


@pytest.mark.parametrize("name", REFERENCES)
def test_config_follows_its_published_update_step_by_step(name):
    for k, (ours, reference) in enumerate(
        zip(configured_path(name), reference_path(name), strict=True)
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-9, msg=f"step {k}")


def test_the_variants_really_differ():
    ends = {name: configured_path(name)[-1] for name in REFERENCES}
    for one in ends:
        for other in ends:
            if one < other:
                assert (ends[one] - ends[other]).abs().max() > 1e-4, (one, other)


def test_momentum_ema_moves_less_at_first_by_the_factor_of_its_average():
    first = {name: configured_path(name)[0] for name in ("momentum", "momentum_ema")}
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    ratio = (first["momentum"] - start) / (first["momentum_ema"] - start)
    torch.testing.assert_close(ratio, torch.full((2,), 1 / (1 - BETA1), dtype=torch.float64))


@pytest.mark.parametrize("name", ["momentum_ema", "adam_monotone"])
def test_state_can_be_saved_and_loaded(name):
    cfg = compose([f"optimizer={name}"])

    def fresh() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        theta = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
        return theta, instantiate(cfg.optimizer)([theta])

    def advance(theta: torch.nn.Parameter, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step, gradient in enumerate(gradients()):
            if step in steps:
                theta.grad = gradient(theta.detach())
                optimizer.step()

    theta, optimizer = fresh()
    advance(theta, optimizer, range(10))
    resumed, resumed_optimizer = fresh()
    resumed.data.copy_(theta.data)
    resumed_optimizer.load_state_dict(deepcopy(optimizer.state_dict()))
    advance(theta, optimizer, range(10, 20))
    advance(resumed, resumed_optimizer, range(10, 20))
    assert torch.equal(theta, resumed)


@pytest.mark.parametrize("name", ["momentum_ema", "adam_monotone"])
def test_parameters_without_gradients_and_closures(name):
    cfg = compose([f"optimizer={name}"])
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = instantiate(cfg.optimizer)([used, unused])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert (used < 1).all() and (unused == 1).all()
