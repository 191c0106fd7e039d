from .result import Request as Request
from .result import Result as Result
from .result import Run as Run
from .result import Status as Status
from .result import answer as answer
from .store import read_study as read_study
from .trajectory import RuleName as RuleName
from .trajectory import Trajectory as Trajectory
