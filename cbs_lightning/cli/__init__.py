"""The command line: what was typed becomes a run or a sweep."""

from cbs_lightning.cli.entry import main, one_line_errors, train

__all__ = ["main", "one_line_errors", "train"]
