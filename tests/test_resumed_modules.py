"""Modules whose hooks, validation and schedulers matter: interrupted, they go on bit for bit."""

import lightning as L
import pytest
import torch

from cbs_lightning.config.identity import run_directory
from cbs_lightning.results.store import CHECKPOINT, read_run
from cbs_lightning.training.run import run
from tests import strangers
from tests.strange_data import Strange
from tests.strange_runs import data, interrupted_after, losses_of, model


def shrink(module):
    with torch.no_grad():
        module.net.weight.mul_(0.97)


class Shrinking(strangers.Plain):
    """Changes its weights when a batch is done, as a moving average does."""

    def on_train_batch_end(self, *_):
        shrink(self)


class Shrink(L.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        shrink(module)


class Validated(Strange):
    def val_dataloader(self):
        return strangers.loader(50)


class Validating(Shrinking):
    """Its validation draws random numbers and changes what follows."""

    validated: list[int] = []  # noqa: RUF012

    def validation_step(self, batch, number):
        if number == 0:
            Validating.validated.append(self.global_step)
        shrink(self)
        self.log("validation", self._loss(batch) + torch.rand(()))


class Following(Validating):
    """Its learning rate follows a metric."""

    def __init__(self, monitor, interval="epoch", frequency=1):
        super().__init__()
        self.scheduler = {
            "monitor": monitor, "interval": interval, "frequency": frequency, "strict": False,
        }  # fmt: skip

    def training_step(self, batch, number):
        loss = super().training_step(batch, number)
        self.log("training", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.7, threshold=0.5
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, **self.scheduler},
        }


class Skipping(Shrinking):
    """Goes on to the next epoch early."""

    def on_train_batch_start(self, batch, number):
        return -1 if number == 7 else None


class Lazy(Shrinking):
    """Its weights have no shape before the first batch."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.LazyLinear(2)


def own(name, **settings):
    return model(f"test_resumed_modules.{name}", **settings)


VALIDATED = data("test_resumed_modules.Validated")
OFTEN = "trainer.val_check_interval=4"  # of 13 steps
BY_WINDOW = ["stop.rule=window", "stop.window=60"]
STREAM = [*data(kind="iterable"), *BY_WINDOW, "stop.max_steps=30"]
KINDS = {
    "a hook of the module": own("Shrinking"),
    "a hook of the module, in slices": [*own("Shrinking"), "micro_batch_size=5"],
    "a hook of the module, on a stream": [*own("Shrinking"), *STREAM],
    "weights that are made late": own("Lazy"),
    "epochs that are cut": [*own("Skipping"), *BY_WINDOW],
    "epochs that are cut, of a sampler": [*own("Skipping"), *BY_WINDOW, *data("Sampled")],
    "a hook of a callback": ["+callbacks.shrink._target_=tests.test_resumed_modules.Shrink"],
    "validation": [*own("Validating"), *VALIDATED],
    "validation inside epochs": [*own("Validating"), *VALIDATED, OFTEN],
    "a mean of the epoch": [*own("Following", monitor="training"), *VALIDATED],
    "a metric of validation": [*own("Following", monitor="validation"), *VALIDATED],
    "a metric of the epoch before": [
        *own("Following", monitor="validation", interval="step", frequency=4), *VALIDATED
    ],
    "a metric inside epochs": [
        *own("Following", monitor="validation", interval="step", frequency=4), *VALIDATED, OFTEN
    ],
}  # fmt: skip


# Interrupted five times; there is no checkpoint inside the first epoch where a scheduler follows.
RESUMED = {kind: 3 for kind in KINDS if "metric" in kind or "mean" in kind}


def test_what_follows_a_cut_epoch_is_another_one(strange):
    """In another order: it does not go on with the samples that were skipped."""
    cfg = strange(*own("Skipping"), *BY_WINDOW, "stop.loss=1e-9", "stop.max_steps=14")
    whole = strange(*own("Shrinking"), *BY_WINDOW, "stop.loss=1e-9", "stop.max_steps=14")
    cut, usual = losses_of(cfg), losses_of(whole)
    assert cut[:7] == usual[:7] and cut[7] != usual[7]
    trajectory = read_run(run_directory(cfg)).trajectory
    assert trajectory.size.tolist() == [16] * 14


@pytest.mark.parametrize("kind", KINDS)
def test_what_happens_after_a_step_is_in_its_checkpoint(
    strange, monkeypatch, capsys, tmp_path, kind
):
    request = ["stop.loss=1e-9", "stop.max_epochs=3", "checkpoint.keep=true", *KINDS[kind]]
    undisturbed = strange(*request, f"output_dir={tmp_path / 'undisturbed'}")
    run(undisturbed)
    cfg = strange(*request)
    for steps in (4, 6, 13, 17, 28):
        interrupted_after(monkeypatch, cfg, steps)
    run(cfg)
    assert capsys.readouterr().out.count("resuming from") == RESUMED.get(kind, 5)
    one, other = (run_directory(each) for each in (undisturbed, cfg))
    assert read_run(one).trajectory.digest() == read_run(other).trajectory.digest()
    first, second = (torch.load(each / CHECKPOINT, weights_only=True) for each in (one, other))
    assert str(first["lr_schedulers"]) == str(second["lr_schedulers"])
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name


def test_an_interruption_is_no_reason_to_validate(strange, monkeypatch):
    Validating.validated = []
    cfg = strange(*KINDS["validation inside epochs"], "stop.loss=1e-9", "stop.max_epochs=2")
    interrupted_after(monkeypatch, cfg, 6)
    run(cfg)
    assert Validating.validated == [4, 8, 12, 17, 21, 25]
