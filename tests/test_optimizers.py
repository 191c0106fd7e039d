"""Every optimizer config against its update written out plainly, step by step, in float64."""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from cbs_lightning.callbacks.optimizer_settings import OptimizerSettings
from cbs_lightning.config.composition import compose
from cbs_lightning.optim import Adafactor, Muon, ScheduleFree
from cbs_lightning.optim.groups import make_optimizer
from cbs_lightning.training.build import optimizer_factory
from tests.optimizers import OPTIMIZERS

STEPS = 30
Update = Callable[[Tensor, Tensor, int], Tensor]  # theta, gradient, k = 0, 1, ... -> new theta
LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-8, 0.1
OVERRIDES = {
    "sgd": [f"optimizer.lr={LR}"],
    "momentum": [f"optimizer.lr={LR}", f"optimizer.momentum={BETA1}"],
    "momentum_ema": [f"optimizer.lr={LR}", f"optimizer.momentum={BETA1}"],
    **dict.fromkeys(
        (
            "adam",
            "amsgrad",
            "adam_monotone",
            "adamw",
            "nadam",
            "radam",
            "adabelief",
            "yogi",
            "lion",
            "schedule_free",
        ),
        [f"optimizer.lr={LR}", f"optimizer.betas=[{BETA1},{BETA2}]"],
    ),
}
OVERRIDES["adagrad"] = [f"optimizer.lr={LR}"]
OVERRIDES["rmsprop"] = [f"optimizer.lr={LR}", f"optimizer.alpha={BETA2}"]
OVERRIDES["signum"] = [f"optimizer.lr={LR}", f"optimizer.momentum={BETA1}"]
for decayed in ("adamw", "adabelief", "yogi", "lion", "signum", "schedule_free"):
    OVERRIDES[decayed] = [*OVERRIDES[decayed], f"optimizer.weight_decay={DECAY}"]


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


def zeros(count: int) -> list[Tensor]:
    return [torch.zeros(2, dtype=torch.float64) for _ in range(count)]


def adagrad() -> Update:
    """Duchi et al. (2011), the diagonal form."""
    (total,) = zeros(1)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal total
        total = total + gradient**2
        return theta - LR * gradient / (total.sqrt() + 1e-10)

    return update


def rmsprop() -> Update:
    (v,) = zeros(1)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal v
        v = BETA2 * v + (1 - BETA2) * gradient**2
        return theta - LR * gradient / (v.sqrt() + EPS)

    return update


def yogi() -> Update:
    """Zaheer et al. (2018), Algorithm 2, from v = 1e-6 and with epsilon = 1e-3."""
    m, v = zeros(2)
    v = v + 1e-6

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m, v
        m = BETA1 * m + (1 - BETA1) * gradient
        square = gradient**2
        v = v - (1 - BETA2) * torch.sign(v - square) * square
        return theta - LR * DECAY * theta - LR * m / (v.sqrt() + 1e-3)

    return update


def adabelief() -> Update:
    """Zhuang et al. (2020), Algorithm 2, with decoupled weight decay."""
    m, s = zeros(2)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m, s
        m = BETA1 * m + (1 - BETA1) * gradient
        s = BETA2 * s + (1 - BETA2) * (gradient - m) ** 2 + EPS
        m_hat, s_hat = m / (1 - BETA1 ** (k + 1)), s / (1 - BETA2 ** (k + 1))
        return theta - LR * DECAY * theta - LR * m_hat / (s_hat.sqrt() + EPS)

    return update


def nadam() -> Update:
    """Dozat (2016), with his schedule of the momentum."""
    m, v = zeros(2)
    product = 1.0

    def momentum(step: int) -> float:
        return BETA1 * (1 - 0.5 * 0.96 ** (step * 0.004))

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m, v, product
        now, following = momentum(k + 1), momentum(k + 2)
        product *= now
        m = BETA1 * m + (1 - BETA1) * gradient
        v = BETA2 * v + (1 - BETA2) * gradient**2
        m_hat = following * m / (1 - product * following) + (1 - now) * gradient / (1 - product)
        return theta - LR * m_hat / ((v / (1 - BETA2 ** (k + 1))).sqrt() + EPS)

    return update


def radam() -> Update:
    """Liu et al. (2020), Algorithm 2; torch rectifies from rho > 5 on, they from rho > 4."""
    m, v = zeros(2)
    longest = 2 / (1 - BETA2) - 1

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m, v
        step = k + 1
        m = BETA1 * m + (1 - BETA1) * gradient
        v = BETA2 * v + (1 - BETA2) * gradient**2
        m_hat = m / (1 - BETA1**step)
        rho = longest - 2 * step * BETA2**step / (1 - BETA2**step)
        if rho <= 5:
            return theta - LR * m_hat
        part = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
        return theta - LR * part**0.5 * m_hat * (1 - BETA2**step) ** 0.5 / (v.sqrt() + EPS)

    return update


def lion() -> Update:
    """Chen et al. (2023), Algorithm 2."""
    (m,) = zeros(1)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m
        direction = torch.sign(BETA1 * m + (1 - BETA1) * gradient)
        m = BETA2 * m + (1 - BETA2) * gradient
        return theta - LR * (direction + DECAY * theta)

    return update


def signum() -> Update:
    """Bernstein et al. (2018), Algorithm 2, with decoupled weight decay."""
    (m,) = zeros(1)

    def update(theta: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal m
        m = BETA1 * m + (1 - BETA1) * gradient
        return theta - LR * (torch.sign(m) + DECAY * theta)

    return update


def schedule_free() -> Update:
    """Defazio et al. (2024) with z and x kept, and a constant rate.

    As in the authors' adamw_schedulefree.py, not Algorithm 1: the rate has no bias correction.
    """
    (v,) = zeros(1)
    x = z = None

    def update(y: Tensor, gradient: Tensor, k: int) -> Tensor:
        nonlocal v, x, z
        if z is None:
            x = z = y
        v = BETA2 * v + (1 - BETA2) * gradient**2
        root = (v / (1 - BETA2 ** (k + 1))).sqrt() + EPS
        z = z - LR * (gradient / root + DECAY * y)
        x = (1 - 1 / (k + 1)) * x + z / (k + 1)
        return (1 - BETA1) * z + BETA1 * x

    return update


REFERENCES: dict[str, Callable[[], Update]] = {
    "sgd": lambda: algorithm_1(0.0, identity_matrix),
    "momentum": heavy_ball,
    "momentum_ema": momentum_ema,
    "adam": lambda: algorithm_1(BETA1, adam_root(monotone=False)),
    "amsgrad": amsgrad,
    "adam_monotone": lambda: algorithm_1(BETA1, adam_root(monotone=True)),
    "adamw": adamw,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "yogi": yogi,
    "adabelief": adabelief,
    "nadam": nadam,
    "radam": radam,
    "lion": lion,
    "signum": signum,
    "schedule_free": schedule_free,
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


@cache
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


class Net(torch.nn.Module):
    """Has convolutions, matrices and vectors, some of each hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 6, 3), torch.nn.Flatten(),
            torch.nn.Linear(6 * 16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def trained(net: Net, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(16, 1, 8, 8, generator=generator)
        labels = torch.arange(16) % 3
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()


def net_and_optimizer(name: str, *overrides: str) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    settings = compose([f"optimizer={name}", *overrides]).optimizer
    return net, make_optimizer(optimizer_factory(settings), net)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_state_goes_on_bit_for_bit(name):
    net, optimizer = net_and_optimizer(name)
    trained(net, optimizer, range(12))
    content = BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, content)
    content.seek(0)
    saved = torch.load(content, weights_only=True)
    resumed, resumed_optimizer = net_and_optimizer(name)
    trained(resumed, resumed_optimizer, [77])
    resumed.load_state_dict(saved["net"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    for each in ((net, optimizer), (resumed, resumed_optimizer)):
        trained(*each, range(12, 30))
    for one, other in zip(net.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


OWN = [
    "momentum_ema", "adam_monotone", "yogi", "adabelief", "adafactor", "lion", "signum",
    "schedule_free",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
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


@pytest.mark.parametrize("name", OWN)
def test_a_parameter_that_joins_later_begins_at_its_own_first_step(name):
    """Its bias corrections are not those of the others."""
    cfg = compose([f"optimizer={name}"])
    early, late, alone = (torch.nn.Parameter(torch.tensor([1.0, 3.0])) for _ in range(3))
    optimizer, other = (instantiate(cfg.optimizer)(each) for each in ([early, late], [alone]))
    for step in range(6):
        early.grad = early.detach().clone()
        if step >= 3:
            late.grad, alone.grad = late.detach().clone(), alone.detach().clone()
            other.step()
        optimizer.step()
    assert torch.equal(late, alone) and not torch.equal(late, early)


def adafactor_path(shape: tuple[int, ...], theta: Tensor, gradients: list[Tensor]) -> Tensor:
    """Shazeer and Stern (2018), Algorithms 4 and 5, of one parameter."""
    rows = columns = full = torch.zeros((), dtype=torch.float64)
    for t, gradient in enumerate(gradients, 1):
        keep = 1 - t**-0.8
        square = gradient**2 + 1e-30
        if len(shape) < 2:
            full = keep * full + (1 - keep) * square
            v = full
        else:
            rows = keep * rows + (1 - keep) * square.sum(-1, keepdim=True)
            columns = keep * columns + (1 - keep) * square.sum(-2, keepdim=True)
            v = rows * columns / rows.sum(-2, keepdim=True)
        update = gradient / v.sqrt()
        update = update / max(1.0, update.square().mean().sqrt().item())
        size = max(1e-3, theta.square().mean().sqrt().item())
        theta = theta - min(LR, t**-0.5) * size * update
    return theta


SHAPES = [(5,), (4, 7), (7, 4), (6, 3, 3, 3), ()]


@pytest.mark.parametrize("shape", SHAPES)
def test_adafactor_follows_its_published_update(shape):
    generator = torch.Generator().manual_seed(1)

    def drawn() -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    theta = torch.nn.Parameter(drawn())
    start, gradients = theta.detach().clone(), [drawn() for _ in range(STEPS)]
    optimizer = instantiate(compose(["optimizer=adafactor", f"optimizer.lr={LR}"]).optimizer)(
        [theta]
    )
    for gradient in gradients:
        theta.grad = gradient
        optimizer.step()
    torch.testing.assert_close(theta.detach(), adafactor_path(shape, start, gradients))


@pytest.mark.parametrize("shape", [(4, 7), (5,)])
def test_adafactor_is_torchs_own(shape):
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.nn.Parameter(torch.ones(shape, dtype=torch.float64)) for _ in range(2))
    optimizers = Adafactor([ours], lr=LR), torch.optim.Adafactor([theirs], lr=LR, eps=(1e-30, 1e-3))
    for _ in range(STEPS):
        ours.grad = torch.randn(shape, generator=generator, dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def muon_path(theta: Tensor, gradients: list[Tensor], nesterov: bool) -> Tensor:
    """Jordan et al. (2024), of one matrix, with Newton and Schulz's iteration written out."""
    m = torch.zeros_like(theta)
    for gradient in gradients:
        m = 0.95 * m + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * m if nesterov else m
        x = x / x.norm()
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
        theta = theta - LR * DECAY * theta
        theta = theta - LR * max(1.0, theta.shape[0] / theta.shape[1]) ** 0.5 * x
    return theta


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (6, 2, 3, 3)])
def test_muon_follows_its_published_update(shape, nesterov):
    generator = torch.Generator().manual_seed(3)
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for _ in range(2)
    ]
    starts = [weight.detach().clone() for weight in weights]
    gradients = [
        [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in weights]
        for _ in range(STEPS)
    ]
    optimizer = Muon(weights, lr=LR, weight_decay=DECAY, nesterov=nesterov)
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient
        optimizer.step()
    for number, start in enumerate(starts):
        own = [step[number].flatten(1) for step in gradients]
        expected = muon_path(start.flatten(1), own, nesterov)
        torch.testing.assert_close(weights[number].detach().flatten(1), expected)


def test_muon_is_torchs_own_but_for_its_bfloat16():
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(16, 16, generator=generator)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        Muon([ours], lr=0.02, weight_decay=DECAY),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=DECAY),
    )
    for _ in range(10):
        ours.grad = torch.randn(16, 16, generator=generator)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved, apart = (ours - start).norm(), (ours - theirs).norm()
    assert apart < 0.02 * moved


def soap_path(theta: Tensor, gradients: list[Tensor]) -> Tensor:
    """Vyas et al. (2024), Algorithm 3, of one matrix; the first gradient sets up the bases.

    Their eigenvectors are renewed by a QR decomposition every tenth step, where the second moments
    take the new order.
    """
    m = v = torch.zeros_like(theta)
    first, beta = gradients[0], 0.95
    left, right = (1 - beta) * first @ first.T, (1 - beta) * first.T @ first
    q_left, q_right = (torch.linalg.eigh(each)[1].flip(1) for each in (left, right))
    for step, gradient in enumerate(gradients[1:], 1):
        m = beta * m + (1 - beta) * gradient
        v = beta * v + (1 - beta) * (q_left.T @ gradient @ q_right) ** 2
        direction = (q_left.T @ m @ q_right) / (v.sqrt() + EPS)
        rate = LR * (1 - beta**step) ** 0.5 / (1 - beta**step)
        theta = theta - rate * q_left @ direction @ q_right.T
        left = beta * left + (1 - beta) * gradient @ gradient.T
        right = beta * right + (1 - beta) * gradient.T @ gradient
        if step % 10 == 0:
            order = [(q.T @ g @ q).diagonal().argsort(descending=True)
                     for q, g in ((q_left, left), (q_right, right))]  # fmt: skip
            v = v[order[0]][:, order[1]]
            q_left, q_right = (
                torch.linalg.qr((g @ q[:, o]).float())[0].double()
                for g, q, o in ((left, q_left, order[0]), (right, q_right, order[1]))
            )
    return theta


def test_soap_follows_its_published_update():
    generator = torch.Generator().manual_seed(5)
    theta = torch.nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
    start = theta.detach().clone()
    gradients = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(STEPS)]
    optimizer = instantiate(compose(["optimizer=soap", f"optimizer.lr={LR}"]).optimizer)([theta])
    for gradient in gradients:
        theta.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(theta.detach(), soap_path(start, gradients), rtol=1e-5, atol=1e-6)


def test_muons_vectors_and_outer_layers_are_adamws():
    net, optimizer = net_and_optimizer("muon", "optimizer.groups.rest.weight_decay=0.1")
    other = deepcopy(net)
    matrices, rest = optimizer.param_groups
    names = {parameter: name for name, parameter in net.named_parameters()}
    assert [names[p] for p in matrices["params"]] == ["layers.1.weight", "layers.3.weight"]
    assert (matrices["lr"], rest["lr"]) == (0.02, 0.001)
    theirs = dict(other.named_parameters())
    adamw = torch.optim.AdamW([theirs[names[p]] for p in rest["params"]], lr=1e-3, weight_decay=0.1)
    for step in range(10):
        trained(net, optimizer, [step])
        for parameter, name in names.items():
            theirs[name].grad = parameter.grad
        adamw.step()
    for parameter in rest["params"]:
        torch.testing.assert_close(parameter, theirs[names[parameter]])
    for parameter in matrices["params"]:
        assert not torch.equal(parameter, theirs[names[parameter]])


def test_schedule_free_shows_the_average_and_trains_on_from_where_it_was():
    theta, other = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    plain, switched = ScheduleFree([theta], lr=LR), ScheduleFree([other], lr=LR)
    iterates = []
    for step, gradient in enumerate(gradients()):
        theta.grad, other.grad = (gradient(p.detach().double()).float() for p in (theta, other))
        plain.step()
        switched.step()
        iterates.append(switched.state[other]["z"].clone())
        switched.eval()
        torch.testing.assert_close(other.detach(), torch.stack(iterates).mean(0))
        if step == 3:
            with pytest.raises(RuntimeError, match="train"):
                switched.step()
        switched.eval()
        switched.train()
        switched.train()
        assert torch.equal(theta, other)


def test_a_schedule_free_state_saved_while_evaluating_holds_both():
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = ScheduleFree([theta], lr=LR)
    theta.grad = torch.ones(2)
    optimizer.step()
    optimizer.step()
    trained_point = theta.detach().clone()
    optimizer.eval()
    loaded = torch.nn.Parameter(theta.detach().clone())
    again = ScheduleFree([loaded], lr=LR)
    again.load_state_dict(deepcopy(optimizer.state_dict()))
    again.train()
    assert torch.equal(loaded, trained_point) and not torch.equal(theta, trained_point)


@pytest.mark.parametrize("rates", [[0.0, 0.1, 0.2], [0.0, 0.0, 0.0], [0.1, 0.0, 0.1]])
def test_a_schedule_free_step_without_a_learning_rate_changes_nothing(rates):
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = ScheduleFree([theta], lr=LR)
    iterates, weights = [], []
    for rate in rates:
        before = theta.detach().clone()
        theta.grad = torch.ones(2, dtype=torch.float64)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        assert torch.equal(theta, before) is (rate == 0)
        iterates.append(rate**2 * optimizer.state[theta]["z"])
        weights.append(rate**2)
    optimizer.eval()
    if sum(weights):
        torch.testing.assert_close(theta.detach(), sum(iterates) / sum(weights))


def test_a_schedule_free_average_is_each_parameters_own():
    """Also if two miss gradients in different steps while the learning rate changes."""

    def averaged(*, accompanied: bool) -> Tensor:
        one, other = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
        optimizer = ScheduleFree([one, other] if accompanied else [other], lr=LR)
        for step in range(1, 7):
            optimizer.param_groups[0]["lr"] = LR * step / 6
            one.grad = torch.full_like(one, step) if step != 2 else None
            other.grad = torch.full_like(other, step) if step != 1 else None
            optimizer.step()
        optimizer.eval()
        return other.detach()

    assert torch.equal(averaged(accompanied=True), averaged(accompanied=False))


def test_the_settings_of_a_schedule_free_optimizer_are_those_it_was_given():
    """And not which of its weights are there."""
    optimizer = ScheduleFree([torch.nn.Parameter(torch.ones(2))], lr=LR)
    optimizer.param_groups[0]["initial_lr"] = 2 * LR
    settings = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    assert OptimizerSettings.of(optimizer) == (2 * LR, settings)


LIST = (
    (Path(__file__).parents[1] / "docs" / "optimizers.md").read_text().partition("## The list")[2]
)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("more", [[], ["optimizer.decoupled_weight_decay=true"]])
def test_the_page_says_which_weight_decay_an_optimizer_has(name, more):
    """Without gradients, decoupled decay is lr times decay a step, whatever the optimizer."""
    (row,) = [line for line in LIST.splitlines() if re.match(rf"\| [^|]*`{name}`", line)]
    named, *_, kinds, _ = [cell.strip() for cell in row.split("|")][1:]
    kind = dict(zip(named.split(", "), kinds.split(", "), strict=False)).get(f"`{name}`", kinds)
    cfg = compose([f"optimizer={name}"])
    if "weight_decay" not in cfg.optimizer:
        assert kinds == "none"
        return
    if more and "decoupled_weight_decay" not in cfg.optimizer:
        return
    settings = {**compose([f"optimizer={name}", *more]).optimizer, "lr": 0.01, "weight_decay": 0.1}
    settings.pop("groups", None)
    weights = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = instantiate(settings)([weights])
    for _ in range(60):  # the first ones of RAdam do not divide by second moments
        weights.grad = torch.zeros(2, 3)
        optimizer.step()
    decays = (1 - weights.mean().item()) / (0.01 * 0.1)
    assert (decays < 60.1) == (bool(more) or kind == "decoupled" or name == "sgd")
