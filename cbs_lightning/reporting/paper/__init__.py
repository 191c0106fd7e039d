"""The paper's studies: its own numbers, the runs published here, and the page about both."""

from cbs_lightning.reporting.paper.cells import PaperCell, paper_cells

__all__ = ["PaperCell", "paper_cells"]
