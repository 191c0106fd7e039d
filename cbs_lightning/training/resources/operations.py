"""Counts the operations of a step without computing it."""

import json
import math

import torch
from torch.utils.flop_counter import FlopCounterMode

from cbs_lightning.config.schema import RunConfig
from cbs_lightning.data import ImageDataModule
from cbs_lightning.training.build import bare_classifier
from cbs_lightning.training.loops import is_classifier
from cbs_lightning.training.source import Source

PASSES = 3  # forward, and backward to the weights and to the layer before


def operations_of_step(cfg: RunConfig, source: Source) -> float:
    """Floating-point operations of convolutions and matrix products, for a batch or a slice of it.

    Infinite if nothing is known about the model.
    """
    images = source.images
    if images is None or not is_classifier(cfg):
        return math.inf
    key = json.dumps(cfg.model, sort_keys=True, default=str), images.image_shape
    if key not in _of_sample:
        _of_sample[key] = _count(cfg, images)
    sizes = [cfg.batch_size, images.train_size]
    if isinstance(cfg.micro_batch_size, int):
        sizes.append(cfg.micro_batch_size)
    return float(min(sizes) * _of_sample[key])


# What was counted in this process, by model and shape of an image: a sweep's runs have few.
_of_sample: dict[tuple[str, tuple[int, ...]], float] = {}


def _count(cfg: RunConfig, data: ImageDataModule) -> float:
    images = torch.zeros(2, *data.image_shape, device="meta")
    with torch.random.fork_rng(devices=[]):
        net = bare_classifier(cfg, data).net.to("meta").train()
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            net(images)
    except Exception:  # a net that looks at values: nothing is known of it
        return math.inf
    return PASSES * counter.get_total_flops() / len(images)
