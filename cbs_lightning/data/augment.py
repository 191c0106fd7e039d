"""The usual augmentation of small images: a random crop of the padded image, perhaps mirrored."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    padding: int  # pixels added on each side before the crop
    flip: bool  # a mirrored digit is another sign: only for photographs

    def draw(self, samples: int, rng: torch.Generator) -> Tensor:
        """For each sample the row and the column of its crop, and whether it is mirrored."""
        crops = torch.randint(2 * self.padding + 1, (samples, 2), generator=rng)
        mirrored = torch.randint(2 if self.flip else 1, (samples, 1), generator=rng)
        return torch.cat((crops, mirrored), 1)

    def apply(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """`pixels` is N x H x W x C; `draws` has a row for each of the N."""
        count, height, width, _ = pixels.shape
        rows = draws[:, 0:1] + torch.arange(height, device=pixels.device)
        columns = draws[:, 1:2] + torch.arange(width, device=pixels.device)
        columns = torch.where(draws[:, 2:3].bool(), columns.flip(1), columns)
        margin = self.padding
        padded = pad(pixels, (0, 0, margin, margin, margin, margin))
        samples = torch.arange(count, device=pixels.device)[:, None, None]
        return padded[samples, rows[:, :, None], columns[:, None, :]]
