"""Whether a stored configuration matches the result beside it."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from cbs_lightning.config.identity import canonical, config_hash, flatten
from cbs_lightning.config.schema import AUTO, RunConfig, Settings
from cbs_lightning.console import print_line, visible
from cbs_lightning.results.result import Result
from cbs_lightning.results.store import RESULT, DamagedError, read_result

MOST_SHOWN = 5  # differences
LONGEST_SHOWN = 100  # characters of each


def warn_of_disagreement(
    path: Path, stored: Settings, cfg: RunConfig, left_out: Collection[str]
) -> None:
    """Print, once per process, how the file differs from the result beside it.

    Args:
        path: of the file.
        stored: what it says.
        cfg: the same, as the configuration of a run.
        left_out: keys that do not matter.
    """
    try:
        result = read_result(path.parent)
    except FileNotFoundError:
        return
    except (DamagedError, OSError) as error:
        _warn(f"{path}: cannot be compared with {RESULT} beside it ({error})")
        return
    if found := list(_differences(stored, cfg, result, left_out)):
        shown = ", ".join(found[:MOST_SHOWN])
        more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
        _warn(f"{path}: differs from what {RESULT} beside it was made with: {shown}{more}")


def _differences(
    stored: Settings, cfg: RunConfig, result: Result, left_out: Collection[str]
) -> Iterator[str]:
    found = {key: value for key, value in stored.items() if key not in left_out}
    made_with = {k: v for k, v in result.configuration.items() if k not in left_out}
    if made_with:  # else a run of old
        ours, theirs = (
            {k: canonical(v) for k, v in flatten(c).items()} for c in (found, made_with)
        )
        for key in dict.fromkeys([*ours, *theirs]):
            one, other = ours.get(key, "missing"), theirs.get(key, "missing")
            if one != other:
                yield f"{key}={_short(one)} ({RESULT}: {_short(other)})"
    if result.config_hash not in _hashes(cfg, result):
        yield f"config_hash={config_hash(cfg)} ({RESULT}: {_short(result.config_hash)})"


def _hashes(cfg: RunConfig, result: Result) -> list[str]:
    """The hash of the configuration, and the one with an automatically chosen slice."""
    if cfg.micro_batch_size != result.micro_batch_size:
        return [config_hash(cfg)]
    return [config_hash(cfg), config_hash(replace(cfg, micro_batch_size=AUTO))]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


@cache
def _warn(text: str) -> None:
    print_line(visible(f"warning: {text}"))
