from .theorem import adam_lower_bound as adam_lower_bound
from .theorem import constants as constants
