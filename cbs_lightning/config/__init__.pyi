from .compose import CONF_DIR as CONF_DIR
from .compose import complete as complete
from .compose import compose as compose
from .compose import config_hash as config_hash
