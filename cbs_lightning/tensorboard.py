"""A run's row in TensorBoard's HParams table."""

from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from cbs_lightning.results import Result

SUFFIX = ".hparams"
SETTINGS = ("optimizer", "batch_size", "lr", "seed", "data", "model", "threshold", "rule")
METRICS = ("steps", "sfo", "samples", "loss", "accuracy", "test_accuracy", "seconds", "steps_run")


def write_hparams(directory: Path, result: Result) -> None:
    """Replace the run's row. A run that did not reach its threshold has no steps, sfo, samples."""
    # TensorBoard keeps the first row it reads of a run: an older one has to go.
    for path in directory.glob(f"events.out.tfevents.*{SUFFIX}"):
        path.unlink()
    settings: dict[str, Any] = {"status": str(result.status), "variant": result.variant}
    settings |= {name: _plain(getattr(result, name)) for name in SETTINGS}
    settings |= {name: _plain(value) for name, value in result.hyperparameters.items()}
    values = {f"result/{name}": getattr(result, name) for name in METRICS}
    metrics = {name: value for name, value in values.items() if value is not None}
    with SummaryWriter(str(directory), filename_suffix=SUFFIX) as writer:
        for summary in hparams(settings, metrics):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(name, value, 0)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) else str(value)
