"""The constants of Theorem 3.1 as a run's probes measure them, beside the exact ones.

A linear net on digits has no random layers and no BatchNorm, so that its full gradient and the
variance of a single sample's gradient can be computed at every step.
"""

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import one_hot
from torch.optim.optimizer import register_optimizer_step_post_hook

from cbs_lightning.callbacks.probes.theorem import FINAL_WEIGHTS
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.noise.record import Probe
from cbs_lightning.noise.theorem import Inner, Suprema, theorem_lines, theorem_of
from cbs_lightning.results.store import read_run
from cbs_lightning.theory import constants
from cbs_lightning.training.run import run
from tests.conftest import TINY
from tests.test_any_module import interrupted_after
from tests.test_probes import record_of
from tests.test_restart import assert_same_runs

LINEAR = [
    *TINY, "model._target_=tests.tiny.Linear", "batch_size=64", "stop.loss=1.0", "stop.rule=window",
    "stop.window=512", "data.normalize=true",  # else some pixels, and so gradients, are always 0
]  # fmt: skip
THEOREM = ["noise.probes=6", "noise.samples=2560", "noise.curvature=false", "noise.theorem=true"]
OPTIMIZERS = {
    "sgd": ["optimizer=sgd", "optimizer.lr=0.01"],
    "momentum_ema": ["optimizer=momentum_ema", "optimizer.lr=0.01"],
    "adam_monotone": ["optimizer=adam_monotone", "optimizer.lr=0.001"],
}


@dataclass
class Watched:
    """All weights, batch gradients and second moments of the steps that any optimizer makes."""

    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    seconds: list[Tensor] = field(default_factory=list)

    def __call__(self, optimizer, *_) -> None:
        (weight,) = optimizer.param_groups[0]["params"]
        self.weights.append(weight.detach().clone())
        self.gradients.append(weight.grad.clone())
        if "square" in optimizer.state[weight]:
            self.seconds.append(optimizer.state[weight]["square"].clone())


def sample_gradients(weight: Tensor) -> Tensor:
    """Of every sample of digits, at these weights of the linear net."""
    inputs, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    inputs = ((inputs / 16 - 0.3053) / 0.3760).float()  # as the data are normalised
    away = torch.softmax(inputs @ weight.T, 1) - one_hot(labels, 10)
    return away[:, :, None] * inputs[:, None, :]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_measured_constants_beside_the_exact_ones(optimizer, tmp_path, capsys):
    cfg = compose([*LINEAR, *OPTIMIZERS[optimizer], f"output_dir={tmp_path}"])
    watched = Watched()
    hook = register_optimizer_step_post_hook(watched)
    run(cfg)
    hook.remove()
    run(compose([*LINEAR, *OPTIMIZERS[optimizer], *THEOREM, f"output_dir={tmp_path}"]))
    printed = capsys.readouterr().out
    record = record_of(run_directory(cfg))
    found, steps = record.theorem, len(watched.weights)
    assert found["steps"] == steps == read_run(run_directory(cfg)).result.steps_run
    # over all steps: exact
    theta = watched.weights[-1]
    away = [each - theta for each in watched.weights]
    assert found["dist"] == pytest.approx(max(float(each.norm()) for each in away))
    assert found["theta1_dist2"] == pytest.approx(float(away[0].square().sum()))
    assert found["D"] == pytest.approx(max(float(each.square().max()) for each in away))
    assert found["M"] == pytest.approx(
        max(float(each.square().max()) for each in watched.gradients)
    )
    assert found["d"] == theta.numel()
    if watched.seconds:
        assert found["v_star"] == pytest.approx(min(float(each.min()) for each in watched.seconds))
    # at probes: as good as their samples, and below the supremum
    exact = [sample_gradients(each) for each in watched.weights[:: max(1, steps // 30)]]
    full = [each.mean(0) for each in exact]
    largest = max(float(each.norm()) for each in full)
    assert 0.3 * largest < found["G"] < 1.1 * largest
    noise = max(float(each.flatten(1).var(0).sum()) for each in exact)
    assert found["sigma2"] == pytest.approx(noise, rel=0.2)
    strided = away[:: max(1, steps // 30)]
    inner = [float((one * other).sum()) for one, other in zip(full, strided, strict=True)]
    vi = sum(inner) / len(inner)
    assert found["vi"] == pytest.approx(vi, rel=0.15)
    # The bound is made of what probes saw at most, less than the suprema of the theorem.
    assert found["vi"] <= 1.05 * found["bound"]
    assert found["vi"] <= 1.05 * largest * found["dist"]
    # and the constants are those of the theorem
    assert found["bound"] == pytest.approx(sum(found["terms"].values()))
    if optimizer == "sgd":
        c = constants("sgd", lr=0.01, sigma2=found["sigma2"], G=found["G"], dist=found["dist"],
                      theta1_dist2=found["theta1_dist2"])  # fmt: skip
        assert (c.c1, c.c2, c.c3) == pytest.approx((found["c1"], found["c2"], found["c3"]))
        assert found["critical_batch"] == pytest.approx(c.critical_batch(found["vi"]))
        assert "gives b* = " in printed
        assert "v_star" not in found["looked_for"] and "M" in found["looked_for"]
    else:  # h alone is more than Dist·G
        assert found["dominant"] in ("c3", "c1/K", "c2/b") and found["critical_batch"] is None
        assert "Theorem 3.1 gives no b*: ε = VI" in printed


def test_the_second_pass_changes_nothing_and_goes_on_after_an_interruption(tmp_path, monkeypatch):
    plain, measured, late = (
        compose([*LINEAR, *OPTIMIZERS["sgd"], *more, f"output_dir={tmp_path / name}"])
        for name, more in (("plain", []), ("measured", THEOREM), ("late", []))
    )
    run(plain)
    run(measured)
    assert_same_runs(tmp_path / "plain", tmp_path / "measured")
    assert not list((tmp_path / "measured").rglob(FINAL_WEIGHTS))
    run(late)
    asked = compose([*LINEAR, *OPTIMIZERS["sgd"], *THEOREM, f"output_dir={tmp_path / 'late'}"])
    wanted = record_of(run_directory(measured))
    interrupted_after(monkeypatch, asked, wanted.probes[2].step)  # where only weights are sought
    run(asked)
    assert record_of(run_directory(asked)).theorem == wanted.theorem


def test_at_a_looser_threshold_it_says_which_run_the_constants_are_of(tmp_path, capsys):
    asked = [*LINEAR, *OPTIMIZERS["sgd"], *THEOREM, f"output_dir={tmp_path}"]
    run(compose(asked))
    first = capsys.readouterr().out
    assert "Theorem 3.1: " in first and "of the run to" not in first
    run(compose([*asked, "stop.loss=1.5"]))
    lines = [each for each in capsys.readouterr().out.splitlines() if "Theorem 3.1" in each]
    assert lines and all(each.endswith(" (of the run to 1)") for each in lines)


def test_what_cannot_be_found_says_why():
    nothing = theorem_of("sgd", 0.1, {}, 4, [], Suprema(), {})
    assert theorem_lines(nothing) == ["Theorem 3.1: no probe was made"]
    suprema = Suprema(dist=1.0, theta1_dist2=1.0, D=0.5, M=1.0, v_star=0.0, d=3, steps=10)
    probe = Probe(5, 20, 1.0, 10, gradient_norm2=0.25, noise_trace=2.0)
    inner = {5: Inner(0.4, 0.01)}
    found = theorem_of("adam_monotone", 0.1, {"betas": [0.9, 0.99]}, 4, [probe], suprema, inner)
    assert found["reason"].startswith("no constants: ") and found["vi"] == 0.4
    some = replace(suprema, v_star_above_0=1e-8, weights_at_0=7)
    found = theorem_of("adam_monotone", 0.1, {"betas": [0.9, 0.99]}, 4, [probe], some, inner)
    line, _ = theorem_lines(found)
    assert "its bound is infinite, as 7 weights had no gradient yet; else at least" in line
    lost = theorem_of("sgd", 0.1, {}, 4, [probe], Suprema(math.nan, 1.0, steps=10), inner)
    assert lost["reason"].startswith("no constants: dist must be")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["optimizer=adam"], "it needs second moments that never fall: try adam_monotone"),
        (["optimizer=momentum"], "try momentum_ema); allowed: sgd, momentum_ema, adam_monotone"),
        (["optimizer=lion"], "other steps than those of optimizer=lion; allowed: sgd"),
        (["optimizer=sgd", "optimizer.weight_decay=0.1"], "allows no weight decay"),
        (["optimizer=sgd", "warmup_samples=100"], "needs a constant learning rate"),
        (["optimizer=sgd", "noise.probes=0"], "noise.theorem=true: needs probes"),
    ],
)
def test_mistakes_are_told_in_a_line(cli, settings, message, tmp_path):
    done = cli("noise.probes=1", "noise.theorem=true", *settings, f"output_dir={tmp_path}")
    assert done.code == 1 and message in done.err and done.err.count("\n") == 1
