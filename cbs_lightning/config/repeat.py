"""Runs a stored configuration again."""

from collections.abc import Sequence
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config.agreement import warn_of_disagreement
from cbs_lightning.config.schema import Names, RunConfig, Settings, read
from cbs_lightning.config.stored import read_stored
from cbs_lightning.errors import UserError
from cbs_lightning.imports import load_frameworks

# Where things are, how they are shown and whom to trust is never somebody else's to say.
OWN = (
    "repeat", "trusted_packages", "output_dir", "data_dir", "progress", "tensorboard", "report",
    "answer_within", "jobs", "jobs_per_gpu", "logger",
)  # fmt: skip


def repeated(
    values: Settings,
    names: dict[str, Any],
    groups: Sequence[str],
    overrides: Sequence[str],
    *,
    quiet: bool,
) -> tuple[Settings, dict[str, Any]]:
    """The configuration stored in the run directory `repeat`, and its names, under the command
    line's.

    What it does not contain comes from `values`, and so does everything in `overrides`. If it does
    not match the result beside it, a line says so, unless `quiet`.
    """
    path, stored = read_stored(values["repeat"])
    load_frameworks()  # only where it is needed, since it takes seconds
    from cbs_lightning.config.trust import check_targets

    check_targets(stored, values["trusted_packages"])
    merged = OmegaConf.create(values)
    stored_names = stored.pop("names")
    for key in [key for key in stored if key not in OWN]:
        known = key in values and key not in groups
        merged[key] = _updated(merged[key], stored[key]) if known else stored[key]
    cfg = read(RunConfig, OmegaConf.to_container(merged), names=read(Names, stored_names, "names."))
    if not quiet:
        warn_of_disagreement(path, stored | {"names": stored_names}, cfg, OWN)
    merged_names = dict(stored_names)
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if override.is_delete() or key == "experiment":
            raise UserError(f"{override.input_line}: cannot be combined with repeat")
        if key in groups:
            merged_names[key] = names[key]
        if key.partition(".")[0] in values:
            own = OmegaConf.select(OmegaConf.create(values), key)
            OmegaConf.update(merged, key, own, merge=False, force_add=True)
    return cast(Settings, OmegaConf.to_container(merged)), merged_names


def _updated(defaults: Any, stored: Any) -> Any:
    """A group takes the stored values key by key, because it may have new keys since."""
    if isinstance(defaults, DictConfig) and isinstance(stored, dict):
        return OmegaConf.merge(defaults, stored)
    return stored
