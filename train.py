"""Train to a loss threshold: one run, or with -m a sweep. See README.md."""

import hydra
from omegaconf import DictConfig

from cbs_lightning.cli import one_line_errors, run_job
from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.errors import UserError
from cbs_lightning.results.result import Result


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def train(cfg: DictConfig) -> Result | UserError | None:
    return run_job(cfg)


if __name__ == "__main__":
    with one_line_errors():
        train()
