"""`recommendation.json`: a study's answer, for scripts."""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cbs_lightning.analysis.lr_comparison import LrComparison
from cbs_lightning.analysis.recommendation import LEVEL, OVERHEAD, Recommendation
from cbs_lightning.analysis.thresholds import AcrossThresholds
from cbs_lightning.files import write_atomically

RECOMMENDATION = "recommendation.json"
SCHEMA_VERSION = 2  # since there are ranges; `interval` was of the measured minimum before


def write_recommendations(
    directory: Path,
    found: list[Recommendation],
    across: list[AcrossThresholds],
    lr: Iterable[LrComparison] = (),
    *,
    study: str = "",
) -> Path:
    """Write the answers; open ends of intervals and unknown numbers are null.

    `study`: its name, unless that is the directory's.
    """
    by_variant = {one.variant: one.as_json() for one in across}
    values = {
        "schema_version": SCHEMA_VERSION,
        "study": study or directory.name,
        "level": LEVEL,
        "overhead": OVERHEAD,
        "variants": [
            _recommendation(one) | {"across_thresholds": by_variant.get(one.variant)}
            for one in found
        ],
        "learning_rates": [one.as_json() for one in lr],
    }
    path = directory / RECOMMENDATION
    write_atomically(path, (json.dumps(_json_values(values), indent=2) + "\n").encode())
    return path


def _recommendation(found: Recommendation) -> dict[str, Any]:
    """The file's key for the caveats is `unknowns`, on which scripts rely."""
    values = asdict(found)
    del values["why_none"]  # `no_interior_minimum` says it
    return {{"caveats": "unknowns"}.get(key, key): value for key, value in values.items()}


def _json_values(value: Any) -> Any:
    """The same with lists for tuples, and None for numbers that JSON does not have."""
    if isinstance(value, dict):
        if isinstance(value.get("interval"), tuple):  # 0 is as open an end as infinity
            value = value | {"interval": [end or math.inf for end in value["interval"]]}
        return {key: _json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
