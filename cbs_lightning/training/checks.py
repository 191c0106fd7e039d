"""What only shows once a module is in its Trainer."""

import lightning as L

from cbs_lightning.config.extensions import require_harmless


class RefuseCallbacks(L.Callback):
    """Refuses from a module's `configure_callbacks` what the key `callbacks` refuses."""

    def setup(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for callback in callbacks:
            kind = type(callback)
            require_harmless(f"{type(module).__name__}.configure_callbacks", kind.__name__, kind)


def is_missing_scheduler(error: Exception) -> bool:
    """Whether a module called `self.lr_schedulers().step()`, and there is none."""
    return isinstance(error, AttributeError) and error.obj is None and error.name == "step"
