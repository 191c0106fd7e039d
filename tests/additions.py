"""What a user may add to a run: a schedule, callbacks and a logger of one's own."""

import signal
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger


class Halved:
    """No class of the project's, and without a horizon."""

    def __init__(self, after: int) -> None:
        self.after = after

    def factor(self, samples: int) -> float:
        return 0.5 if samples >= self.after else 1.0


class Endless:
    def __init__(self, horizon_samples: int) -> None:
        self.horizon_samples = horizon_samples

    def factor(self, samples: int) -> Any:
        return "fast"


class Epochs(L.Callback):
    """Counts them, over restarts as well."""

    latest: "Epochs"

    def __init__(self, first: int = 0) -> None:
        if first < 0:
            raise ValueError("first must not be\nnegative")
        self.count = first
        Epochs.latest = self

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.count += 1
        self.callbacks = trainer.callbacks

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


class Shaken(L.Callback):
    """Multiplies the weights at the start, which changes all losses."""

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for weight in module.parameters():
            weight.data.mul_(self.factor)


class Stopping(L.Callback):
    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.should_stop = True


class Interrupting(L.Callback):
    """Presses Ctrl-C after the first epoch."""

    def on_train_epoch_end(self, *_: Any) -> None:
        signal.raise_signal(signal.SIGINT)


class EveryStep(L.Callback):
    """Counts the steps, and has seen the learning rate of each."""

    latest: "EveryStep"

    def __init__(self) -> None:
        self.rates: list[float] = []
        EveryStep.latest = self

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


class Remembering(Logger):
    latest: "Remembering"

    def __init__(self, save_dir: str, project: str = "", run_name: str = "", limit: int = 5):
        super().__init__()
        self.save_dir_given, self.project, self.run_name = save_dir, project, run_name
        self.limit = limit
        self.hyperparameters: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        Remembering.latest = self

    name = version = None

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.hyperparameters |= params

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.metrics |= metrics


class Unreachable(Remembering):
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        raise OSError("no server\nthere")
