from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .single import Fit as Fit
from .single import fit as fit
