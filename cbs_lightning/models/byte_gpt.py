"""A small transformer that predicts the next byte of a text.

An ordinary LightningModule: nothing in it knows of thresholds, batch sizes or this project.
"""

from typing import cast

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import Optimizer

BYTES = 256  # a token is a byte


class Block(nn.Module):
    """Causal attention, then a feed-forward net, each on normalised input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x))
        expanded = nn.functional.gelu(self.expand(self.norm2(x)))
        return x + cast(Tensor, self.contract(expanded))

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.project(mixed.transpose(1, 2).reshape(batch, length, width)))


class ByteGPT(L.LightningModule):
    """Predicts each byte of a sequence from those before it, with LayerNorm and without dropout.

    A batch is two integer tensors, samples x length: the bytes, and for each the one that follows.

    Args:
        width: of the vector that stands for a byte.
        layers: number of transformer blocks.
        heads: of attention in each block; they share the width.
        context: the longest sequence, in bytes.
        lr: of AdamW, the model's own optimizer.
    """

    def __init__(
        self,
        width: int = 48,
        layers: int = 2,
        heads: int = 2,
        context: int = 32,
        lr: float = 1e-3,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width={width}: must be a multiple of heads={heads}")
        self.lr = lr
        self.context = context
        self.embed = nn.Embedding(BYTES, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.apply(_initialise)
        nn.init.normal_(self.position, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "contract.weight")):
                # The sum over all blocks begins at the scale of one.
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"a sequence of {length} bytes; model.context is {self.context}")
        x = self.blocks(self.embed(tokens) + self.position[:length])
        return cast(Tensor, self.head(self.norm(x)))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        tokens, following = batch
        return cross_entropy(self(tokens).flatten(0, 1), following.flatten())

    def configure_optimizers(self) -> Optimizer:
        return torch.optim.AdamW(self.parameters(), self.lr)


def _initialise(module: nn.Module) -> None:
    """GPT-2's: small normal weights, no offsets."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
