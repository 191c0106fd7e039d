"""The usual augmentation of small images: a random crop of the padded image, perhaps mirrored."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    padding: int  # pixels added on each side before the crop
    flip: bool  # a mirrored digit is another sign: only for photographs


def crop_and_flip(pixels: Tensor, augmentation: Augmentation, rng: torch.Generator) -> Tensor:
    """`pixels` is N x H x W x C; the random choices are made on the CPU, the work on its device."""
    count, height, width, _ = pixels.shape
    device = pixels.device
    offsets = torch.randint(2 * augmentation.padding + 1, (2, count, 1), generator=rng).to(device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = offsets[1] + torch.arange(width, device=device)
    if augmentation.flip:
        mirrored = torch.randint(2, (count, 1), generator=rng).to(device).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    margin = augmentation.padding
    padded = pad(pixels, (0, 0, margin, margin, margin, margin))
    samples = torch.arange(count, device=device)[:, None, None]
    return padded[samples, rows[:, :, None], columns[:, None, :]]
