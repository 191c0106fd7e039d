"""The paper's studies: its own numbers, what was published of them here, and the page on both."""

from cbs_lightning.reporting.paper.cells import PaperCell, paper_cells

__all__ = ["PaperCell", "paper_cells"]
