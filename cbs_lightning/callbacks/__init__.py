"""What watches a run: one concern each."""

from cbs_lightning.callbacks.checkpoint import TimedCheckpoint
from cbs_lightning.callbacks.log_curves import LogCurves
from cbs_lightning.callbacks.progress import PrintProgress
from cbs_lightning.callbacks.progress_bar import ShowProgressBar
from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.callbacks.signals import StopOnSignal
from cbs_lightning.callbacks.stop import StopAtThreshold
from cbs_lightning.callbacks.tell_board import TellBoard

__all__ = [
    "LogCurves",
    "PrintProgress",
    "ShowProgressBar",
    "StopAtThreshold",
    "StopOnSignal",
    "TellBoard",
    "TimedCheckpoint",
    "TrajectoryRecorder",
]
