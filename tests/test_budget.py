"""A module that reads the budget: what it is told, and whom its losses answer."""

import pytest
import torch

from cbs_lightning.config import identity
from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.errors import UserError
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import CHECKPOINT, read_run
from cbs_lightning.training.run import run
from tests import strangers
from tests.strange_data import Strange
from tests.strange_runs import data, interrupted_after, losses_of, model
from tests.test_run import forbid_training

NEVER = "stop.loss=1e-9"
PER_EPOCH = 13  # steps


class Asking(strangers.Plain):
    """Notes what its Trainer says."""

    found = None

    def configure_optimizers(self):
        trainer = self.trainer
        Asking.found = trainer.max_epochs, trainer.max_steps, trainer.estimated_stepping_batches
        return super().configure_optimizers()


class Falling(strangers.Plain):
    """Its learning rate falls to 0 over the epochs of the budget."""

    rates: list[float] = []  # noqa: RUF012

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        horizon = self.trainer.max_epochs
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=horizon)
        return [optimizer], [schedule]

    def on_train_epoch_start(self):
        Falling.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])


class Elsewhere(strangers.Plain):
    """Reads the budget in code that is not its own."""

    def configure_optimizers(self):
        return scheduled(self, super().configure_optimizers())


def scheduled(module, optimizer):
    steps = module.trainer.estimated_stepping_batches
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Annealed(strangers.Plain):
    """Reads the budget where a chosen optimizer cannot help it."""

    def training_step(self, batch, _):
        return super().training_step(batch, _) + self.global_step / self.trainer.max_steps


class AskingData(Strange):
    """Asks for its Trainer before there are steps."""

    def setup(self, stage):
        super().setup(stage)
        self.batch_size //= self.trainer.world_size
        self.epochs = self.trainer.max_epochs

    def train_dataloader(self):
        assert self.trainer.is_global_zero and self.epochs == self.trainer.max_epochs
        return super().train_dataloader()


@pytest.mark.parametrize(
    ("budget", "told", "steps"),
    [
        (["stop.max_epochs=3"], (3, 39, 39), 39),
        (["stop.max_epochs=3", "stop.max_steps=20"], (3, 20, 20), 20),
    ],
)
def test_the_trainer_tells_the_budget_and_the_run_ends_with_it(strange, budget, told, steps):
    result = run(strange(*model("test_budget.Asking"), NEVER, *budget))
    assert Asking.found == told and result.steps_run == steps
    assert result.status is Status.EXHAUSTED and result.reads_budget


def test_a_schedule_over_the_epochs_falls_to_the_end_also_after_an_interruption(
    strange, monkeypatch, tmp_path
):
    request = [*model("test_budget.Falling"), NEVER, "stop.max_epochs=4"]
    Falling.rates = []
    whole = losses_of(strange(*request, f"output_dir={tmp_path / 'whole'}"))
    assert Falling.rates == pytest.approx([0.5, 0.4268, 0.25, 0.0732], abs=1e-4)
    cfg = strange(*request)
    for steps in (PER_EPOCH, 30):  # the end of an epoch too
        interrupted_after(monkeypatch, cfg, steps)
    assert losses_of(cfg) == whole


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            ["stop.max_epochs=null", "stop.max_steps=5"],
            "stop.max_epochs=null: tests.test_budget reads trainer.max_epochs; a number of epochs",
        ),
        (
            [*data(kind="iterable"), "stop.rule=window", "stop.window=60", "stop.max_steps=5"],
            "stop.max_epochs=200: tests.test_budget reads trainer.max_epochs, and a stream has no",
        ),
    ],
)
def test_epochs_that_there_are_not_are_refused(strange, request_, said):
    with pytest.raises(UserError) as error:
        run(strange(*model("test_budget.Falling"), *request_))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "kind", [model("test_budget.Elsewhere"), [*model("test_budget.Annealed"), "optimizer=sgd"]]
)
def test_losses_answer_for_their_own_budget_alone(strange, monkeypatch, tmp_path, capsys, kind):
    def configuration(steps, where):
        return strange(*kind, NEVER, f"stop.max_steps={steps}", f"output_dir={tmp_path / where}")

    fresh = losses_of(configuration(20, "fresh"))
    short = losses_of(configuration(10, "reused"))
    assert fresh[:10] != short
    assert losses_of(configuration(20, "reused")) == fresh
    said = "its module reads the budget, which was 200 epochs or 10 steps; training starts again"
    assert said in capsys.readouterr().out
    forbid_training(monkeypatch)
    looser = strange(
        *kind, "stop.loss=1.5", "stop.max_steps=20", f"output_dir={tmp_path / 'fresh'}"
    )
    assert run(looser).status is Status.REACHED


def test_a_checkpoint_of_another_budget_is_not_resumed(strange, monkeypatch, tmp_path, capsys):
    def configuration(steps, where="reused"):
        named = [*model("test_budget.Elsewhere"), f"output_dir={tmp_path / where}"]
        return strange(*named, NEVER, f"stop.max_steps={steps}", "checkpoint.every_seconds=1e-9")

    fresh = losses_of(configuration(20, "fresh"))
    killed = configuration(10)
    interrupted_after(monkeypatch, killed, 5)
    directory = run_directory(killed)
    for path in directory.glob("*.json"):  # as a kill leaves it
        path.unlink()
    assert (directory / CHECKPOINT).exists()
    assert losses_of(configuration(20)) == fresh
    assert "reads the budget, which was stop.max_epochs=200, stop.max_steps=10; not used" in (
        capsys.readouterr().out
    )


def test_a_module_that_does_not_ask_answers_for_any_budget(strange):
    ten = ["checkpoint.keep=true", NEVER, "stop.max_steps=10"]
    short = losses_of(strange(*ten))
    result = run(strange("checkpoint.keep=true", NEVER, "stop.max_steps=20"))
    assert not result.reads_budget and result.steps_run == 20
    assert read_run(run_directory(strange(*ten))).trajectory.loss[:10].tolist() == short


def test_data_have_a_trainer_from_the_start(strange):
    cfg = strange(*data("test_budget.AskingData"), NEVER, "stop.max_epochs=1")
    result = run(cfg)
    assert result.steps_run == PER_EPOCH and result.reads_budget


def test_a_users_package_may_be_called_like_a_framework(strange, monkeypatch):
    def hashes():
        identity._may_schedule_by_budget.cache_clear()
        budgets = ["stop.max_epochs=3"], ["stop.max_epochs=4"]
        named = model("Scheduled", interval="step")
        return {config_hash(strange(*named, *budget)) for budget in budgets}

    plain = hashes()
    monkeypatch.setattr(strangers.Scheduled, "__module__", "lightning_nets.mine")
    assert len(plain) == 2 and hashes() == plain
    identity._may_schedule_by_budget.cache_clear()
