"""Draws the figures of a study. Never trains."""

from cbs_lightning.reporting.figures.by_batch_size import draw
from cbs_lightning.reporting.figures.by_hyperparameter import draw_by_hyperparameter
from cbs_lightning.reporting.figures.by_threshold import draw_by_threshold
from cbs_lightning.reporting.figures.losses import draw_losses
from cbs_lightning.reporting.figures.tradeoff import draw_tradeoff
from cbs_lightning.reporting.figures.write import figures_of, write_figures

__all__ = [
    "draw",
    "draw_by_hyperparameter",
    "draw_by_threshold",
    "draw_losses",
    "draw_tradeoff",
    "figures_of",
    "write_figures",
]
