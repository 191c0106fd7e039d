from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .curve_fit import Fit as Fit
from .curve_fit import fit as fit
