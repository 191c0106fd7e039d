"""Weights the slices of a batch by their numbers of samples."""

from typing import Any

import lightning as L

from cbs_lightning.callbacks.recorder import TrajectoryRecorder


class WeighMicroBatches(L.Callback):
    """Makes Lightning's accumulation exact: the gradient is that of the batch's mean loss.

    Lightning gives all slices the same weight, whatever their size. The loader knows how many
    samples the whole batch has.
    """

    def __init__(self, recorder: TrajectoryRecorder) -> None:
        self.recorder = recorder
        self._weight = 1.0

    def on_fit_start(self, trainer: L.Trainer, module: Any) -> None:
        backward = module.backward

        def weighed(loss: Any, *arguments: Any, **settings: Any) -> None:
            backward(loss * self._weight, *arguments, **settings)

        module.backward = weighed

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        loader: Any = trainer.train_dataloader
        samples = self.recorder.samples_of(trainer, batch, batch_idx)
        share = samples / loader.batch_of(batch_idx)
        self._weight = share * trainer.accumulate_grad_batches  # by which Lightning divides
