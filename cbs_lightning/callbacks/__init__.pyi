from .checkpoint import TimedCheckpoint as TimedCheckpoint
from .log_curves import LogCurves as LogCurves
from .progress import PrintProgress as PrintProgress
from .progress_bar import ShowProgressBar as ShowProgressBar
from .recorder import TrajectoryRecorder as TrajectoryRecorder
from .signals import StopOnSignal as StopOnSignal
from .stop import StopAtThreshold as StopAtThreshold
from .tell_board import TellBoard as TellBoard
