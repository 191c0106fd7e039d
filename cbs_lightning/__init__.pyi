from .analysis.curves import Curve as Curve
from .analysis.curves import curves as curves
from .analysis.recommend import recommend as recommend
from .analysis.recommendation import Recommendation as Recommendation
from .callbacks.probes.gradient_noise import GradientNoise as GradientNoise
from .callbacks.recorder import TrajectoryRecorder as TrajectoryRecorder
from .callbacks.stop_at_threshold import StopAtThreshold as StopAtThreshold
from .config.composition import compose as compose
from .config.schema import RunConfig as RunConfig
from .fit.comparison import Comparison as Comparison
from .fit.comparison import compare as compare
from .optim.adam_monotone import AdamMonotone as AdamMonotone
from .optim.momentum_ema import MomentumEMA as MomentumEMA
from .results.result import Request as Request
from .results.result import Result as Result
from .results.result import Run as Run
from .results.result import Status as Status
from .results.result import answer as answer
from .results.store import read_study as read_study
from .search.search import Search as Search
from .search.trials import Trial as Trial
from .training.run import run as run

__version__: str
