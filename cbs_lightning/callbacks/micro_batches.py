"""Weights the slices of a batch by their numbers of samples."""

from typing import Any

import lightning as L

from cbs_lightning.callbacks.recorder import CountSamples, length_of_first_tensor


class WeighMicroBatches(L.Callback):
    """Makes Lightning's accumulation exact: the gradient is that of the batch's mean loss.

    Lightning gives all slices the same weight, whatever their size. The loader knows how many
    samples the whole batch has.
    """

    def __init__(self, count_samples: CountSamples | None = None) -> None:
        self.count_samples = count_samples or length_of_first_tensor
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
        share = self.count_samples(batch) / loader.batch_of(batch_idx)
        self._weight = share * trainer.accumulate_grad_batches  # by which Lightning divides
