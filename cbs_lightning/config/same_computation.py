"""Finds configurations whose losses are the same computation although their hashes differ.

A batch larger than the data set is the whole data set, and a slice at least as large as the batch
is no slice.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cbs_lightning.config.identity import config_hash, run_directory
from cbs_lightning.config.schema import AUTO, RunConfig
from cbs_lightning.results import store
from cbs_lightning.results.result import Result, Run

DIRECTORY = re.compile(r"-b(\d+)-seed(\d+)-[0-9a-f]{8}")  # the end of its name


def computation_hash(cfg: RunConfig, data_size: int | None) -> str:
    """A hash that is the same for configurations whose losses are the same computation.

    Args:
        cfg: the configuration.
        data_size: samples that a larger batch is cut down to; None: not known to be cut down.
    """
    size = _effective(cfg.batch_size, data_size)
    slice_size = cfg.micro_batch_size
    whole = isinstance(slice_size, int) and slice_size >= size
    return config_hash(
        replace(cfg, batch_size=size, micro_batch_size=None if whole else slice_size)
    )


def runs_of_same_computation(cfg: RunConfig, data_size: int | None) -> Iterator[Run]:
    """The study's stored runs of other configurations whose losses are those of this one."""
    own = run_directory(cfg)
    for path in sorted(own.parent.iterdir()):
        if path == own or path.is_symlink() or not _may_be_same(path, cfg, data_size):
            continue
        with suppress(store.DamagedError, OSError):
            if _is_same(store.read_result(path), cfg, data_size):
                yield store.read_run(path)


def _may_be_same(path: Path, cfg: RunConfig, data_size: int | None) -> bool:
    """Whether the directory's name allows it, so that most results need not be read."""
    found = DIRECTORY.search(path.name)
    if found is None or int(found[2]) != cfg.seed:
        return False
    return _effective(int(found[1]), data_size) == _effective(cfg.batch_size, data_size)


def _is_same(result: Result, cfg: RunConfig, data_size: int | None) -> bool:
    """Whether the run has this configuration, apart from what makes no difference."""
    other = replace(cfg, batch_size=result.batch_size, micro_batch_size=result.micro_batch_size)
    if computation_hash(other, data_size) != computation_hash(cfg, data_size):
        return False
    as_given = (other, replace(other, micro_batch_size=AUTO))  # a result has what was chosen
    return result.config_hash in map(config_hash, as_given)


def _effective(batch_size: int, data_size: int | None) -> int:
    return batch_size if data_size is None else min(batch_size, data_size)
