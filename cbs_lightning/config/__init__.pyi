from .composition import CONF_DIR as CONF_DIR
from .composition import complete as complete
from .composition import compose as compose
from .identity import config_hash as config_hash
from .schema import RunConfig as RunConfig
