"""Between a command line, Hydra and a run."""

from cbs_lightning.cli.entry import main, one_line_errors, train

__all__ = ["main", "one_line_errors", "train"]
