"""The optimizers that there are."""

from cbs_lightning.config.composition import CONF_DIR, DEFAULT_OPTIMIZER
from cbs_lightning.config.identity import OWN

OPTIMIZERS = sorted(
    {path.stem for path in (CONF_DIR / "optimizer").glob("*.yaml")} - {DEFAULT_OPTIMIZER, OWN}
)


def chosen(name: str) -> list[str]:
    """The overrides for it; the small nets of tests have no hidden matrices, so Muon takes all."""
    every_matrix = ["optimizer.groups.matrices.hidden=false"] if name == "muon" else []
    return [f"optimizer={name}", *every_matrix]
