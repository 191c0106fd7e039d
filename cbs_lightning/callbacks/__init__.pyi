from .job import ALONE as ALONE
from .job import Job as Job
from .log_curves import LogCurves as LogCurves
from .progress import FollowProgress as FollowProgress
from .recorder import TrajectoryRecorder as TrajectoryRecorder
from .stop_at_threshold import StopAtThreshold as StopAtThreshold
from .stop_on_signal import StopOnSignal as StopOnSignal
from .timed_checkpoint import TimedCheckpoint as TimedCheckpoint
