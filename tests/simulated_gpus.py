"""GPUs that are not there: torch counts them, Lightning is given them, and the CPU does the work.

In the environment variable SIMULATED_GPUS their number reaches a sweep's workers too: those that
train this module's model import it before they choose a device.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from cbs_lightning.config import checks
from cbs_lightning.training import trainer
from tests.tiny import Restless

VARIABLE = "SIMULATED_GPUS"


class OnCpu(TorchFunctionMode):
    """Whatever is asked of a GPU is done on the CPU; `used` has the numbers of those asked."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[int | None] = []
        self.current: int | None = 0  # where torch does what it is not told to do elsewhere

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, self.cpu, (args, kwargs or {}))
        return func(*args, **kwargs)

    def cpu(self, device: torch.device) -> torch.device:
        if device.type == "cuda":
            self.used.append(device.index)
            return torch.device("cpu")
        return device

    def set_current(self, device: torch.device) -> None:
        self.current = device.index


class Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        torch.cuda.set_device(device)


def simulate(count: int, patch: pytest.MonkeyPatch) -> OnCpu:
    """To be entered, for the CPU to do the work."""
    mode, trainer_of_run = OnCpu(), trainer.BudgetedTrainer

    def on_gpu(*given: Any, **settings: Any) -> L.Trainer:
        devices = settings["devices"]
        index = devices[0] if isinstance(devices, list) else 0
        assert index < count
        strategy = SingleDeviceStrategy(torch.device("cuda", index))
        here = {"accelerator": Accelerator(), "strategy": strategy, "devices": 1}
        return trainer_of_run(*given, **settings | here)

    def rng_state(device: torch.device) -> torch.Tensor:
        mode.cpu(device)
        return torch.tensor([device.index], dtype=torch.uint8)

    patch.setitem(checks.GPUS, "cuda", lambda: True)
    patch.setattr(trainer, "BudgetedTrainer", on_gpu)
    patch.setattr(torch.cuda, "device_count", lambda: count)
    patch.setattr(torch.cuda, "set_device", mode.set_current)
    patch.setattr(torch.cuda, "empty_cache", lambda: mode.used.append(mode.current))
    patch.setattr(torch.cuda, "get_device_name", lambda device: "Simulated")
    patch.setattr(torch.cuda, "get_rng_state", rng_state)
    patch.setattr(torch.cuda, "set_rng_state", lambda _, device: mode.cpu(device))
    return mode


class Watched(Restless):
    """Tells in a file when it begins and ends to train, and where.

    It goes on when `together` have begun. Its process is killed the first time that the seed
    `killed` trains.
    """

    def __init__(
        self, log: str, together: int = 1, killed: int | None = None, **classifier: Any
    ) -> None:
        super().__init__(**classifier)
        self.log_file = Path(log)
        self.together = together
        self.killed = killed

    def on_train_start(self) -> None:
        first = not self.log_file.exists() or self.seed not in [e["seed"] for e in self.events()]
        self.tell("begins")
        while len([e for e in self.events() if e["event"] == "begins"]) < self.together:
            time.sleep(0.02)
        if self.seed == self.killed and first:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self) -> None:
        self.tell("ends")

    @property
    def seed(self) -> int:
        seed: int = self.trainer.train_dataloader.seed
        return seed

    def tell(self, event: str) -> None:
        gpu = self.trainer.strategy.root_device.index
        told = {"event": event, "seed": self.seed, "gpu": gpu, "process": os.getpid()}
        with self.log_file.open("a") as file:
            file.write(json.dumps(told) + "\n")

    def events(self) -> list[dict[str, Any]]:
        return events(self.log_file)


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def main() -> None:
    from cbs_lightning.cli import one_line_errors
    from train import train

    with one_line_errors():
        train()


if VARIABLE in os.environ:
    simulate(int(os.environ[VARIABLE]), pytest.MonkeyPatch()).__enter__()
