"""What watches a run: one concern each."""

from cbs_lightning.callbacks.checkpoint import TimedCheckpoint
from cbs_lightning.callbacks.log_curves import LogCurves
from cbs_lightning.callbacks.progress import ShowProgress
from cbs_lightning.callbacks.recorder import TrajectoryRecorder
from cbs_lightning.callbacks.signals import StopOnSignal
from cbs_lightning.callbacks.stop import StopAtThreshold

__all__ = [
    "LogCurves",
    "ShowProgress",
    "StopAtThreshold",
    "StopOnSignal",
    "TimedCheckpoint",
    "TrajectoryRecorder",
]
