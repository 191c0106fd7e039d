"""Whatever is done to the files of a run: the same answer, or a refusal that names the file."""

import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbs_lightning.analysis.study import Study
from cbs_lightning.config import compose, config_hash
from cbs_lightning.config.identity import run_directory
from cbs_lightning.reporting.report.content import content as report_content
from cbs_lightning.reporting.summary_file import write_summary
from cbs_lightning.results import store
from cbs_lightning.results.checkpoint_checks import check_checkpoint
from cbs_lightning.results.checkpoints import latest_checkpoint, read_checkpoint
from cbs_lightning.results.hparams import write_hparams
from cbs_lightning.results.result import Run
from cbs_lightning.results.store import DamagedError, read_run, read_study
from cbs_lightning.training.resume import expected_of
from cbs_lightning.training.run import find_data, run
from tests.conftest import TINY
from tests.studies import make_run
from tests.test_restart import assert_equal
from tests.test_validation import FIRST_RELEASE, signed

EVERY = pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.slow)])


def for_all(examples: int, *strategies: st.SearchStrategy[Any]) -> Callable[[Any], None]:
    """Try so many of them now, the same ones every time."""

    def check(function: Callable[..., None]) -> None:
        unhurried = settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        unhurried(given(*strategies)(function))()

    return check


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """A bit that is wrong, an end that is missing, or a piece that is gone, repeated or other."""
    start = draw(st.integers(0, len(content) - 1))
    end = min(len(content), start + draw(st.integers(1, 64)))
    kind = draw(st.sampled_from(["bit", "bit", "end", "gone", "twice", "other"]))
    if kind == "bit":
        bit = 1 << draw(st.integers(0, 7))
        return content[:start] + bytes([content[start] ^ bit]) + content[start + 1 :]
    if kind == "end":
        return content[:start]
    piece = {"gone": b"", "twice": 2 * content[start:end]}
    other = piece[kind] if kind in piece else draw(st.binary(min_size=1, max_size=64))
    return content[:start] + other + content[end:]


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 400),
    st.floats(),
    st.floats(0, 10),
    st.sampled_from([0, -1, 1e308, 5e-324, 10**400, math.nan, math.inf, True]),
)
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=8),
    st.sampled_from(["reached", "exhausted", "interrupted", "window", "epoch", "sgd", "a" * 999]),
)
PLAIN = st.one_of(st.none(), NUMBERS, WORDS)
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["betas", "momentum", "lr_scaling", "warmup_samples"]), WORDS
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@pytest.fixture(params=["this release", "the first release"])
def untouched(request, tmp_path) -> Run:
    """A run whose files are copied to be damaged."""
    source = FIRST_RELEASE
    if request.param == "this release":
        make_run(tmp_path / "made", "adam", 8, 3, falling=True)
        (source,) = (tmp_path / "made").iterdir()
    return read_run(source)


@pytest.fixture
def directory(untouched, tmp_path) -> Path:
    """A copy of it."""
    copied = tmp_path / "study" / "copy"
    shutil.copytree(untouched.directory, copied)
    return copied


def assert_same_or_refused(directory: Path, expected: Run) -> None:
    try:
        found = read_run(directory)
    except DamagedError as error:
        assert error.path.parent == directory and str(error).isprintable()
        return
    assert replace(found.result, trajectory_digest=None) == replace(
        expected.result, trajectory_digest=None
    )
    assert found.trajectory.digest() == expected.trajectory.digest()


@EVERY
@pytest.mark.parametrize("name", [store.RESULT, store.TRAJECTORY])
def test_damaged_bytes_are_the_same_run_or_none(examples, directory, untouched, name):
    @for_all(examples, damaged((untouched.directory / name).read_bytes()))
    def check(content: bytes) -> None:
        (directory / name).write_bytes(content)
        assert_same_or_refused(directory, untouched)


QUESTION = ("threshold", "rule", "window", "steps_per_epoch")  # with another one the answer differs


@EVERY
def test_another_value_in_a_result_is_the_same_answer_or_none(
    examples, directory, untouched, tmp_path
):
    """Also where its digest is right: nothing that reads a run fails on what is accepted."""
    stored = json.loads((untouched.directory / store.RESULT).read_text())
    names = [key for key in stored if key != store.DIGEST]
    for batch_size, epochs in ((4, 5), (16, 4), (32, 7)):
        make_run(tmp_path / "others", "adam", batch_size, epochs, falling=True)
    others, _ = read_study(tmp_path / "others")
    pattern = others[1]
    for lr in (1e-2, 1e-1):  # a hyperparameter that is swept
        same = replace(untouched.result, lr=lr, variant=f"adam lr={lr}", rule=pattern.result.rule)
        others.append(Run(pattern.directory, same, untouched.trajectory))

    @for_all(examples, st.sampled_from(names), NESTED)
    def check(key: str, value: Any) -> None:
        (directory / store.RESULT).write_text(signed(stored | {key: value}))
        try:
            found = read_run(directory)
        except DamagedError as error:
            assert error.path.parent == directory and str(error).isprintable()
            return
        if key not in QUESTION:
            answer = [getattr(found.result, name) for name in ("steps", "sfo", "samples")]
            expected = [getattr(untouched.result, name) for name in ("steps", "sfo", "samples")]
            assert answer == expected
        assert_can_be_shown(found, others)


def assert_can_be_shown(run: Run, others: list[Run]) -> None:
    study = Study(run.directory.parent, [run, *others], [])
    assert study.summary_lines()
    assert json.dumps(report_content(study)).encode()
    assert write_summary(run.directory, study.rows)
    write_hparams(run.directory, run.result)


@EVERY
def test_another_value_or_type_in_a_trajectory_is_the_same_run_or_none(
    examples, directory, untouched
):
    arrays = vars(untouched.trajectory)
    changes = st.sampled_from(["value", "type", "shape", "length", "missing", "other array"])
    values = st.one_of(st.integers(-(2**31), 2**31 - 1), st.floats(width=32))
    places = st.integers(0, len(untouched.trajectory) - 1)

    @for_all(examples, st.sampled_from(list(arrays)), changes, places, values)
    def check(name: str, change: str, place: int, value: float) -> None:
        changed = {key: array.copy() for key, array in arrays.items()}
        own = changed[name]
        if change == "value":
            with np.errstate(all="ignore"):
                own[place] = np.float64(value).astype(own.dtype)
        elif change == "type":
            changed[name] = own.astype([">f4", "f8", "i8", "u4", "U3", "?", "c16"][place % 7])
        elif change == "shape":
            changed[name] = own[None] if place % 2 else own[place]
        elif change == "length":
            changed[name] = own[:place]
        elif change == "missing":
            del changed[name]
        else:
            changed[name] = changed[list(arrays)[place % 3]]
        content = BytesIO()
        np.savez(content, **changed)
        (directory / store.TRAJECTORY).write_bytes(content.getvalue())
        assert_same_or_refused_answer(directory, untouched)


def assert_same_or_refused_answer(directory: Path, expected: Run) -> None:
    """Losses of the first release have no digest: those that give the same answer may differ."""
    if expected.result.trajectory_digest:
        assert_same_or_refused(directory, expected)
        return
    try:
        assert read_run(directory).result == expected.result
    except DamagedError as error:
        assert error.path.parent == directory and str(error).isprintable()


class Trained:
    """A run that was trained, its last checkpoint, and what has to fit it."""

    def __init__(self, output_dir: Path) -> None:
        overrides = [*TINY, "model=restless", "stop.max_steps=10", "checkpoint.keep=true"]
        self.cfg = compose(
            [*overrides, "checkpoint.every_seconds=1e-9", f"output_dir={output_dir}"]
        )
        run(self.cfg)
        self.directory = run_directory(self.cfg)
        self.content = (self.directory / store.CHECKPOINT).read_bytes()
        self.values = read_checkpoint(self.content)
        data = find_data(self.cfg)
        data.setup()
        self.expected = expected_of(self.cfg, data.images)

    def check(self, values: Any) -> None:
        check_checkpoint(values, config_hash(self.cfg), self.expected)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@EVERY
def test_damaged_bytes_of_a_checkpoint_are_the_same_checkpoint_or_none(
    examples, trained, tmp_path, capsys
):
    path = tmp_path / store.CHECKPOINT

    @for_all(examples, damaged(trained.content))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        found = latest_checkpoint(tmp_path, trained.check)
        if found is None:
            assert capsys.readouterr().out.startswith(f"{path}: damaged (")
        else:
            assert_equal(read_checkpoint(path.read_bytes()), trained.values)


def places_of(values: Any, path: tuple = ()) -> list[tuple]:
    """The paths to everything inside."""
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    found = []
    for key, value in inside:
        found.append((*path, key))
        if isinstance(value, dict | list | tuple):
            found += places_of(value, (*path, key))
    return found


def changed(values: Any, path: tuple, change: Callable[[Any], Any]) -> Any:
    """A copy with something else there; `GONE` removes it."""
    if not path:
        return change(values)
    key, *rest = path
    new = changed(values[key], tuple(rest), change)
    if isinstance(values, tuple):
        return tuple(new if index == key else value for index, value in enumerate(values))
    copied = copy.copy(values)
    if new is GONE:
        del copied[key]
    else:
        copied[key] = new
    return copied


GONE = object()
# What a run that goes on does not depend on, or cannot tell: times, learning rates that were drawn,
# what it was made with before, Lightning's count of epochs and the loops that are not used.
FREE = [
    ("epoch",), ("callbacks", "TrajectoryRecorder", "seconds"), ("callbacks", "LogCurves"),
    ("callbacks", "TimedCheckpoint", "origin"), ("callbacks", "TimedCheckpoint", "cuda"),
    ("loops", "fit_loop", "epoch_progress"), ("loops", "validate_loop"), ("loops", "test_loop"),
    ("loops", "predict_loop"), ("pytorch-lightning_version",),
]  # fmt: skip


@EVERY
def test_another_value_or_type_in_a_checkpoint_is_the_same_state_or_none(examples, trained):
    def other(value: Any) -> st.SearchStrategy[Any]:
        if not isinstance(value, torch.Tensor):
            return st.one_of(st.just(GONE), NESTED, st.just(torch.zeros(2)))
        return st.one_of(
            st.sampled_from([GONE, value[None], value.double(), value.bool(), torch.zeros(3), {}]),
            st.sampled_from([value.to_sparse(), value.to("meta"), value.flatten()[:-1], None]),
        )

    @for_all(examples, st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(places_of(trained.values)))
        drawn: list[Any] = []

        def change(value: Any) -> Any:
            drawn.extend([value, data.draw(other(value))])
            return drawn[1]

        values = changed(trained.values, path, change)
        try:
            trained.check(values)
        except Exception:  # whatever it is, the checkpoint is set aside
            return
        was, now = drawn
        filled_in = "param_groups" in path and now is GONE  # by torch, with the same setting
        if not filled_in and not any(path[: len(free)] == free for free in FREE):
            assert now is not GONE and not isinstance(now, torch.Tensor), path
            assert now == was or (isinstance(was, list) and list(now) == was), path


def test_what_is_not_checked_of_a_checkpoint_changes_no_loss(trained, tmp_path):
    values = copy.deepcopy(trained.values)
    values["epoch"] = 10**6
    for name in ("validate_loop", "test_loop", "predict_loop"):
        values["loops"][name] = None
    for counts in values["loops"]["fit_loop"]["epoch_progress"].values():
        counts.update(dict.fromkeys(counts, 0))
    values["callbacks"]["LogCurves"]["rates"] = [(0, 0.0), (3, 10.0), (5, 1e-3)]
    values["callbacks"]["TrajectoryRecorder"]["seconds"] = 1e9
    losses = []
    for name, own in (("as it was", trained.values), ("changed", values)):
        cfg = replace(trained.cfg, output_dir=str(tmp_path / name))
        cfg = replace(cfg, stop=replace(cfg.stop, max_steps=30))
        run_directory(cfg).mkdir(parents=True)
        torch.save(own, run_directory(cfg) / store.CHECKPOINT)
        assert run(cfg).steps_run == 30
        losses.append(read_run(run_directory(cfg)).trajectory.digest())
    assert losses[0] == losses[1]
