"""How much a step computes, counted without computing it."""

import math

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.flop_counter import FlopCounterMode

from cbs_lightning.data import ImageDataModule
from cbs_lightning.training.build import bare_model

PASSES = 3  # forward, and backward to the weights and to the layer before


def operations_of_step(cfg: DictConfig, data: ImageDataModule) -> float:
    """Floating-point ones of convolutions and matrix products, of a batch or of a slice of it."""
    image = tuple(data.split.train.pixels.shape[1:])
    key = OmegaConf.to_yaml(cfg.model, sort_keys=True), image
    if key not in _of_sample:
        _of_sample[key] = _count(cfg, data)
    sizes = [cfg.batch_size, len(data.split.train)]
    if isinstance(cfg.micro_batch_size, int):
        sizes.append(cfg.micro_batch_size)
    return float(min(sizes) * _of_sample[key])


# What was counted in this process, by model and shape of an image: a sweep's runs have few.
_of_sample: dict[tuple[str, tuple[int, ...]], float] = {}


def _count(cfg: DictConfig, data: ImageDataModule) -> float:
    height, width, channels = data.split.train.pixels.shape[1:]
    images = torch.zeros(2, channels, height, width, device="meta")
    with torch.random.fork_rng(devices=[]):
        net = bare_model(cfg, data).net.to("meta").train()
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            net(images)
    except Exception:  # a net that looks at values: nothing is known of it
        return math.inf
    return PASSES * counter.get_total_flops() / len(images)
