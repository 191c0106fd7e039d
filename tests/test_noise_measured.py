"""What a probe measures, on problems whose answers are known."""

import copy
import math

import lightning as L
import pytest
import torch
from torch import nn

from cbs_lightning.callbacks.probes.curvature import measure_curvature
from cbs_lightning.callbacks.probes.gradients import GradientSums
from cbs_lightning.callbacks.probes.measurement import ProbeSettings, measure
from cbs_lightning.callbacks.probes.own_steps import (
    OwnSteps,
    decay_of,
    measure_own_steps,
    steps_of_memory,
)
from cbs_lightning.callbacks.probes.preconditioner import RULES, Metric, metric_of
from cbs_lightning.optim.adabelief import AdaBelief
from cbs_lightning.optim.adafactor import Adafactor
from cbs_lightning.optim.adam_monotone import AdamMonotone
from cbs_lightning.optim.lion import Lion
from cbs_lightning.optim.momentum_ema import MomentumEMA
from cbs_lightning.optim.muon import Muon
from cbs_lightning.optim.schedule_free import ScheduleFree
from cbs_lightning.optim.signum import Signum
from cbs_lightning.optim.yogi import Yogi
from tests.quadratic import SPECTRUM, Exact, Quadratic, objective

REPEATS = 150
BATCHES, SIZE = 12, 8

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.005, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.005, momentum=0.9, nesterov=True),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.9),
    "momentum_ema": lambda p: MomentumEMA(p, 0.05, 0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.05, (0.5, 0.99)),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.05, (0.5, 0.99), amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05, (0.5, 0.99), weight_decay=0.0),
    "adam_monotone": lambda p: AdamMonotone(p, 0.05, (0.5, 0.99)),
    "nadam": lambda p: torch.optim.NAdam(p, 0.05, (0.5, 0.99)),
    "radam": lambda p: torch.optim.RAdam(p, 0.05, (0.5, 0.99)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.05, 0.9),
    "rmsprop centered": lambda p: torch.optim.RMSprop(p, 0.05, 0.9, centered=True),
    "rmsprop with momentum": lambda p: torch.optim.RMSprop(p, 0.005, 0.9, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, 1.0),
    "adamax": lambda p: torch.optim.Adamax(p, 0.05, (0.5, 0.99)),
    "adabelief": lambda p: AdaBelief(p, 0.05, (0.5, 0.99)),
    "yogi": lambda p: Yogi(p, 0.05, (0.5, 0.99)),
}


def stepped(make, steps=20):
    """A module and its optimizer after some steps with noisy gradients."""
    module, rng = Quadratic(), torch.Generator().manual_seed(0)
    optimizer = make(module.parameters())
    mean = torch.linspace(1, 2, len(SPECTRUM), dtype=torch.float64)
    for _ in range(steps):
        module.weight.grad = mean + 3 * torch.randn(mean.shape, generator=rng, dtype=mean.dtype)
        optimizer.step()
    return module, optimizer


def measured(module, metric, step, **settings):
    probe = objective(module, step, SIZE)
    sums = GradientSums(BATCHES, SIZE, metric.scale)
    for number in range(sums.batches):
        sums.add(*probe.gradient(number))
    notes = []
    trial = {"trials": 4, "products": 3} | settings
    found = measure_curvature(probe, sums, metric, SIZE, note=notes.append, **trial)
    return sums.statistics | found, notes


@pytest.fixture(scope="module")
def repeats():
    """Many probes at the same weights, in a metric that is not the identity."""
    module = Quadratic()
    scale = torch.tensor([0.5, 1.0, 1.5, 2.0, 4.0, 8.0], dtype=torch.float64)
    metric = Metric(0.1, scale)
    return Exact.at(module), metric, [measured(module, metric, each)[0] for each in range(REPEATS)]


def mean_and_error(values):
    values = torch.tensor(values, dtype=torch.float64)
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


EXACT = {
    "gradient_norm2": lambda exact, _: exact.norm2(),
    "noise_trace": lambda exact, _: exact.noise_trace(),
    "metric_gradient_norm2": lambda exact, metric: exact.norm2(metric.scale),
    "preconditioned_noise_trace": lambda exact, metric: exact.noise_trace(metric.scale),
    "a_trial": lambda exact, metric: exact.a(*metric),
    "c_trial": lambda exact, metric: exact.c(*metric),
    "a_hvp": lambda exact, metric: exact.a(*metric),
    "c_hvp": lambda exact, metric: exact.c(*metric),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_mean_over_many_probes_is_the_exact_value(repeats, name):
    exact, metric, found = repeats
    mean, error = mean_and_error([each[name] for each in found])
    wanted = EXACT[name](exact, metric)
    assert abs(mean - wanted) < 3.5 * error
    assert error < 0.07 * abs(wanted)  # else the line above says nothing


@pytest.mark.parametrize(
    "name", ["gradient_norm2", "noise_trace", "metric_gradient_norm2", "a_trial"]
)
def test_standard_errors_are_those_of_repeated_probes(repeats, name):
    _, _, found = repeats
    spread = float(torch.tensor([each[name] for each in found]).std())
    stated = float(torch.tensor([each[f"{name}_se"] ** 2 for each in found]).mean().sqrt())
    assert 0.6 < stated / spread < 1.7


@pytest.mark.parametrize("prefix", ["", "metric_"])
def test_nine_in_ten_intervals_of_b_simple_hold_it(repeats, prefix):
    exact, metric, found = repeats
    scale = metric.scale if prefix else 1.0
    wanted = exact.noise_trace(scale) / exact.norm2(scale)
    intervals = [each[f"{prefix}b_simple_interval"] for each in found]
    known = [each for each in intervals if each is not None]
    held = sum(low <= wanted <= high for low, high in known)
    assert len(known) > 0.9 * REPEATS
    assert 0.75 < held / len(known) <= 1


def test_the_l1_noise_scale_is_near_that_of_the_exact_gradient(repeats):
    exact, metric, found = repeats
    for prefix, scale in (("", torch.ones(len(SPECTRUM))), ("metric_", metric.scale)):
        ratio = (scale.sqrt() * exact.variance.sqrt()).sum() / (
            scale.sqrt() * exact.gradient.abs()
        ).sum()
        values = torch.tensor([each[f"{prefix}l1_noise_scale"] or math.inf for each in found])
        assert 0.7 < float(values.median()) / float(ratio**2) < 1.6


def test_trial_steps_and_products_agree_where_the_loss_is_quadratic():
    module, metric = Quadratic(), Metric(0.1, torch.ones(len(SPECTRUM), dtype=torch.float64))
    found, _ = measured(module, metric, 0, trials=1, products=2)  # on the same group and noise
    for name in ("a", "c"):
        assert found[f"{name}_trial"] == pytest.approx(found[f"{name}_hvp"], rel=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_metric_is_what_the_optimizer_makes_of_one_more_gradient(name):
    """Summed over all later steps, as momentum spreads it, with second moments held as they are."""
    module, optimizer = stepped(OPTIMIZERS[name])
    metric = metric_of(optimizer, [module.weight])
    state = copy.deepcopy(optimizer.state[module.weight])
    momenta = ("momentum_buffer", "exp_avg", "average", "mean", "step", "mu_product")
    held = [key for key in state if key not in momenta]
    tiny = 1e-6 * torch.arange(1, 1 + len(SPECTRUM), dtype=torch.float64)

    def moved(gradients):
        with torch.no_grad():
            module.weight.fill_(1.0)
        optimizer.state[module.weight] = copy.deepcopy(state)
        for gradient in gradients:
            module.weight.grad = gradient.clone()
            optimizer.step()
            for key in held:
                optimizer.state[module.weight][key] = copy.deepcopy(state[key])
        return module.weight.detach().clone()

    zeros = [torch.zeros_like(tiny)] * 150
    change = moved([tiny, *zeros]) - moved([torch.zeros_like(tiny), *zeros])
    ratio = -change / (metric.eta * metric.scale * tiny)
    assert ratio == pytest.approx(torch.ones_like(ratio), rel=0.25)


def test_the_test_above_knows_every_rule():
    assert {type(OPTIMIZERS[name](Quadratic().parameters())) for name in OPTIMIZERS} == set(RULES)


def test_groups_with_rates_of_their_own_are_in_the_metric():
    slow, fast = (nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [{"params": [slow], "lr": 0.1}, {"params": [fast], "lr": 0.4}]
    metric = metric_of(torch.optim.SGD(groups, 1.0), [slow, fast], factor=0.5)
    assert metric.eta == pytest.approx(0.2)
    assert metric.scale.tolist() == pytest.approx([0.25, 0.25, 1, 1])


def test_an_optimizer_whose_step_is_no_product_has_no_metric():
    parameter = nn.Parameter(torch.ones(2))
    assert metric_of(Lion([parameter]), [parameter]) is None


class Cubic(Quadratic):
    """With a Hessian that is neither diagonal nor the same everywhere."""

    def training_step(self, batch, _):
        (points,) = batch
        return super().training_step(batch, 0) + ((self.weight * points).sum(1) ** 3).mean() / 50


def test_products_are_second_differences_of_the_loss():
    probe = objective(Cubic(), 0, SIZE)
    rng = torch.Generator().manual_seed(1)
    vectors = [torch.randn(len(SPECTRUM), generator=rng, dtype=torch.float64) for _ in range(3)]
    found = probe.curvatures(0, vectors, SIZE)
    for value, vector in zip(found, vectors, strict=True):
        losses = []
        for factor in (1e-3, 0.0, -1e-3):
            probe.move(factor * vector)
            losses.append(probe.loss(0))
        assert value == pytest.approx((losses[0] - 2 * losses[1] + losses[2]) / 1e-6, rel=1e-5)


class Once(Quadratic):
    def training_step(self, batch, _):
        chances = self.weight.view(3, 1, 2).log_softmax(2)
        return super().training_step(batch, 0) + nn.functional.ctc_loss(
            chances, torch.tensor([[1]]), (3,), (1,)
        )


def test_where_torch_lacks_second_derivatives_trial_steps_remain():
    metric = Metric(0.1, torch.ones(len(SPECTRUM), dtype=torch.float64))
    found, notes = measured(Once(), metric, 0)
    assert found["a_trial"] is not None and "a_hvp" not in found
    (note,) = notes
    assert "by trial steps alone" in note and "\n" not in note


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight.clamp(min=0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return gradient * (weight > 0)


class Marked(Quadratic):
    """torch takes a gradient through `Clamped` for a constant, and says nothing."""

    def training_step(self, batch, _):
        (points,) = batch
        weight = self.weight + 10 * Clamped.apply(self.weight)
        return 0.5 * ((weight - points).square() * SPECTRUM).sum(1).mean()


def test_a_function_that_torch_differentiates_only_once_has_no_products():
    metric = Metric(0.001, torch.ones(len(SPECTRUM), dtype=torch.float64))
    found, (note,) = measured(Marked(), metric, 0)
    assert found["a_trial"] is not None and "a_hvp" not in found
    assert "by trial steps alone" in note and "once_differentiable" in note


class Clipping(Quadratic):
    """Clips gradients at half the length that they have in the mean."""

    def configure_gradient_clipping(self, optimizer, **_):
        exact = Exact.at(self)
        length = math.sqrt(exact.norm2() + exact.noise_trace() / SIZE)
        nn.utils.clip_grad_norm_(self.parameters(), length * self.share)


@pytest.mark.parametrize(("share", "left"), [(0.5, 0.5), (100.0, 1.0)])
def test_how_much_of_a_step_clipping_leaves(share, left):
    module, notes = Clipping(), []
    module.share = share
    probe = objective(module, 0, SIZE)
    probe.trainer.gradient_clip_val = probe.trainer.gradient_clip_algorithm = None
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    found = measure(probe, optimizer, BATCHES, ProbeSettings(1), SIZE, 1.0, notes.append)
    assert found["clipping"] == pytest.approx(left, rel=0.35)
    assert ("a_trial" in found) is ("eta" in found) is (notes == []) is (left == 1)
    assert module.weight.grad is None


def test_too_few_batches_for_a_and_c_are_noted():
    module, notes = Quadratic(), []
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    probe = objective(module, 0, SIZE)
    found = measure(probe, optimizer, 2, ProbeSettings(1), SIZE, 1.0, notes.append)
    assert found["eta"] == 0.1
    assert not {"a_trial", "a_hvp", "a_own"} & set(found)
    assert notes == ["a and c are not measured: they need gradients of 3 batches"]


class Stranger(torch.optim.Optimizer):
    """Counts its steps on itself, averages the signs of gradients, and spoils what it is given."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "beta1": 0.9})
        self.count = 0

    def step(self, closure=None):
        self.count += 1
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            average = state.setdefault("average", torch.zeros_like(parameter))
            average.mul_(0.9).add_(parameter.grad.sign_(), alpha=0.1)
            parameter.data.sub_(average, alpha=self.param_groups[0]["lr"])


WITHOUT_METRIC = {
    "lion": lambda p: Lion(p, 0.01),
    "signum": lambda p: Signum(p, 0.01),
    "muon": lambda p: Muon([{"params": list(p), "algorithm": "adamw"}], 0.01),
    "adafactor": lambda p: Adafactor(p, 0.01),
    "schedule_free": lambda p: ScheduleFree(p, 0.01),
    "a stranger's": Stranger,
}


def own_steps(module, optimizer, step, pairs=4):
    probe = objective(module, step, SIZE)
    sums = GradientSums(BATCHES, SIZE)
    for number in range(sums.batches):
        sums.add(*probe.gradient(number))
    notes = []
    found = measure_own_steps(probe, optimizer, sums, SIZE, 1.0, pairs, notes.append)
    return found, notes


def means_of_own_steps(module, optimizer, repeats=40):
    """What probes find in the mean, with its standard error, by name."""
    found = [own_steps(module, optimizer, each)[0] for each in range(repeats)]
    return {name: mean_and_error([each[name] for each in found]) for name in found[0]}


def assert_near(found, exact):
    mean, error = found
    assert abs(mean - exact) < 4 * error
    assert error < abs(exact) / 4


def test_sgds_own_steps_have_the_exact_a_and_c():
    module = Quadratic()
    optimizer, exact = torch.optim.SGD(module.parameters(), 0.05), Exact.at(module)
    found = means_of_own_steps(module, optimizer)
    assert_near(found["a_own"], exact.a(0.05))
    assert_near(found["c_own"], exact.c(0.05))
    assert_near(found["own_noise"], 0.05 * exact.noise_trace())


@pytest.mark.parametrize("name", ["momentum", "momentum_ema", "adam_monotone"])
def test_noise_in_one_of_momentums_steps_counts_with_all_that_follow(name):
    module, optimizer = stepped(OPTIMIZERS[name])
    metric, exact = metric_of(optimizer, list(module.parameters())), Exact.at(module)
    assert decay_of(optimizer) == (0.5 if name == "adam_monotone" else 0.9)
    found = means_of_own_steps(module, optimizer)
    assert_near(found["own_noise"], metric.eta * exact.noise_trace(metric.scale))
    assert_near(found["c_own"], exact.c(metric.eta, metric.scale))


def test_the_memory_of_an_optimizer():
    assert [steps_of_memory(each) for each in (0.0, 0.5, 0.9, 0.99)] == [1, 4, 28, 60]
    lion, signum = (WITHOUT_METRIC[name](Quadratic().parameters()) for name in ("lion", "signum"))
    assert (decay_of(lion), decay_of(signum)) == (0.99, 0.9)


def test_momentums_average_gains_where_a_step_of_the_gradient_overshoots():
    """A steep direction swings from side to side; the average has only the flat one."""
    module = Quadratic()
    optimizer = torch.optim.SGD(module.parameters(), 0.15, momentum=0.9)
    flat = SPECTRUM < 0.3
    with torch.no_grad():
        module.weight.copy_(torch.where(flat, 20.0, 3.0))
    optimizer.state[module.weight]["momentum_buffer"] = torch.where(flat, 10 * 20 * SPECTRUM, 0.0)
    eta = metric_of(optimizer, [module.weight]).eta
    assert Exact.at(module).a(eta) < 0
    found, error = means_of_own_steps(module, optimizer)["a_own"]
    assert found > 4 * error


@pytest.mark.parametrize("name", WITHOUT_METRIC)
def test_an_optimizer_without_a_metric_is_measured_by_its_own_steps_and_left_as_it_was(name):
    module, optimizer = stepped(WITHOUT_METRIC[name])
    assert metric_of(optimizer, list(module.parameters())) is None
    before = copy.deepcopy(
        (module.state_dict(), optimizer.state_dict(), vars(optimizer).get("count"))
    )
    found, notes = own_steps(module, optimizer, 0)
    assert notes == []
    assert found["own_noise"] > 0
    assert all(math.isfinite(found[key]) for key in ("a_own", "c_own"))
    after = (module.state_dict(), optimizer.state_dict(), vars(optimizer).get("count"))
    assert same(after, before)


def same(one, other):
    """Of states, bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


class Pictures(L.LightningModule):
    """A convolution whose weight lies in memory by channels last, as the project's nets do."""

    def __init__(self):
        super().__init__()
        conv = nn.Conv2d(3, 5, 3, padding=1, dtype=torch.float64)
        self.net = conv.to(memory_format=torch.channels_last)

    def training_step(self, batch, _):
        (points,) = batch
        return (self.net(points[:, :3, None, None] * torch.ones(4, 4)) - 1).square().mean()


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_goes_along_the_gradient_however_weights_lie_in_memory(fused):
    torch.manual_seed(0)
    module = Pictures()
    optimizer = torch.optim.SGD(module.parameters(), 0.01, fused=fused)
    probe = objective(module, 0, SIZE)
    sums = GradientSums(BATCHES, SIZE)
    for number in range(sums.batches):
        sums.add(*probe.gradient(number))
    first, _ = OwnSteps(probe, optimizer, sums, SIZE)._walk([sums.mean])
    torch.testing.assert_close(first, -0.01 * sums.mean)


class Asking(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "a closure, please"


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Asking])
def test_a_step_that_takes_gradients_itself_is_left_out_with_a_line(kind):
    module = Quadratic()
    found, (note,) = own_steps(module, kind(module.parameters(), 0.1), 0)
    assert found == {} and torch.equal(module.weight, Quadratic().weight)
    assert note.startswith(f"{kind.__name__} makes no step with a given gradient")
    assert "closure" in note and "\n" not in note
