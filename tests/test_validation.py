"""What no run can have written is refused by name, whatever its checksums say."""

import json
import os
import re
import shutil
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from cbs_lightning.analysis.hyperparameters import hyperparameter_panels
from cbs_lightning.analysis.study import read
from cbs_lightning.reporting.figures.write import figures_of
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.results import store
from cbs_lightning.results.result import Status
from cbs_lightning.results.store import DamagedError, read_run, read_study
from cbs_lightning.results.trajectory import Trajectory
from tests.conftest import TESTS
from tests.studies import make_run, rewrite

FIRST_RELEASE = TESTS / "first_release" / "finished" / "digits_tiny" / "adam-b256-seed0-d820301a"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run directory of b = 8 that reached its threshold after 375 steps."""
    make_run(tmp_path / "study", "adam", 8, 3)
    (directory,) = (tmp_path / "study").iterdir()
    return directory


def signed(values: dict) -> str:
    """As a result is written, with its digest."""
    values = {key: value for key, value in values.items() if key != store.DIGEST}
    return json.dumps(values | {store.DIGEST: store._digest(values)})


def change(directory: Path, **changed) -> None:
    path = directory / store.RESULT
    path.write_text(signed(json.loads(path.read_text()) | changed))


def nested(depth: int):
    return {"a": nested(depth - 1)} if depth else 1


ABSURD = [
    ("batch_size", 0), ("batch_size", -4), ("batch_size", 2**70), ("batch_size", True),
    ("batch_size", 8.0), ("effective_batch_size", 0), ("effective_batch_size", 16),
    ("micro_batch_size", 0), ("seed", -1), ("seed", 2**70), ("window", 0), ("data_size", 0),
    ("steps_per_epoch", 0), ("steps_per_epoch", -1), ("threads", -1), ("threads", 10**9),
    ("threshold", float("nan")), ("threshold", float("inf")), ("threshold", -1.0),
    ("threshold", 0), ("lr", 0.0), ("lr", -1e-3), ("lr", float("nan")), ("lr", 10**400),
    ("lr", "0.1"), ("lr", None), ("seconds", -1.0), ("seconds", float("nan")), ("seconds", 1e300),
    ("seconds_per_step", float("nan")), ("seconds_per_step", -0.5), ("seconds_per_step", 1e-320),
    ("epochs_run", float("inf")), ("epochs_run", -1), ("loss", float("nan")), ("loss", "low"),
    ("accuracy", 1.5), ("accuracy", -0.1), ("test_accuracy", float("nan")),
    ("status", "fine"), ("status", "exhausted"), ("status", "interrupted"), ("status", None),
    ("ended", "fine"), ("rule", "step"), ("steps", None), ("steps", 376), ("steps", 0),
    ("steps", 2**70), ("sfo", 3001), ("sfo", None), ("samples", None), ("samples", 0),
    ("samples", 2999), ("steps_run", -1), ("steps_run", 10**9), ("steps_run", 2**62),
    ("steps_run", 200), ("schema_version", 0), ("study", ""), ("study", "two\nlines"),
    ("variant", "adam\0"), ("variant", "a" * 10_000), ("variant", "lone \ud800"),
    ("variant", "\x1b[2J"), ("optimizer", "\udfff"), ("optimizer", 3), ("model", "\n"),
    ("data", None), ("device", "cpu\n"), ("machine", "\ud800"), ("commit", "\0"),
    ("versions", {"python": "\ud800"}), ("versions", []), ("hyperparameters", None),
    ("hyperparameters", {"\ud800": 1}), ("configuration", {"model": {"name": ["\ud800"]}}),
    ("configuration", nested(100)), ("configuration", {"lr_scaling": "magic"}),
    ("configuration", {"lr_scaling": None}), ("trajectory_digest", "0" * 64),
    ("trajectory_digest", 3), ("loss", 0.5), ("accuracy", 0.25), ("threshold", 0.5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), ABSURD, ids=lambda value: re.sub(r"\W+", "_", ascii(value))[:40]
)
def test_a_result_of_absurd_values_is_refused_by_name(run, key, value):
    change(run, **{key: value})
    with pytest.raises(DamagedError) as refused:
        read_run(run)
    reason = str(refused.value)
    assert refused.value.path.parent == run and len(reason) < 400 and reason.isprintable()
    runs, broken = read_study(run.parent)
    assert not runs and [each.directory for each in broken] == [run]


def test_only_an_optimizer_configured_without_a_learning_rate_has_none(run):
    result = json.loads((run / store.RESULT).read_text())
    assert result["configuration"]["optimizer"]["lr"] == result["lr"] == 1e-3
    change(run, lr=None, configuration=result["configuration"] | {"optimizer": {"lr": None}})
    assert read_run(run).result.lr is None


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "1" * 5000, "NaN", "null", '"a"'])
def test_json_that_is_no_result_is_refused_by_name(run, text):
    (run / store.RESULT).write_text(text)
    with pytest.raises(DamagedError, match=r"result\.json"):
        read_run(run)


def test_a_result_that_is_no_file_or_too_large_is_not_read(run):
    path = run / store.RESULT
    with path.open("ab") as file:
        file.truncate(10**9)
    with pytest.raises(DamagedError, match="too large"):
        read_run(run)
    path.unlink()
    os.mkfifo(path)  # which would be waited for
    with pytest.raises(DamagedError, match="not a file"):
        read_run(run)


def losses_of(directory: Path) -> dict:
    return dict(vars(read_run(directory).trajectory))


def test_another_runs_losses_are_found_out(run):
    """Also where they are as many, and the answer is the same."""
    arrays = losses_of(run)
    arrays["loss"] = arrays["loss"] * np.float32(1.0000002)
    store.write_trajectory(run, Trajectory(**arrays))
    with pytest.raises(DamagedError, match=r"trajectory\.npz: not the losses of this result"):
        read_run(run)


def test_losses_beyond_the_result_are_not_its_own(run):
    arrays = losses_of(run)
    longer = {name: np.concatenate((array, array)) for name, array in arrays.items()}
    longer["size"][-1] = 0  # nor are they looked at
    store.write_trajectory(run, Trajectory(**longer))
    assert len(read_run(run).trajectory) == 375


@pytest.mark.parametrize("edited", ["a loss in the middle", "the last losses", "another run's"])
def test_losses_of_the_first_release_must_give_its_answer(tmp_path, edited):
    run = tmp_path / "run"
    shutil.copytree(FIRST_RELEASE, run)
    before = read_run(run)
    assert before.result.trajectory_digest is None
    arrays = losses_of(run)
    if edited == "a loss in the middle":
        arrays["loss"][40:48] = 1.0  # an epoch that meets the threshold
    elif edited == "the last losses":
        arrays["loss"][-1] *= 1.001
    else:
        arrays = {name: np.flip(array) for name, array in arrays.items()}
    store.write_trajectory(run, Trajectory(**arrays))
    with pytest.raises(DamagedError, match=r"trajectory\.npz: losses that do not give the answer"):
        read_run(run)


ARRAYS = {
    "a batch of none": lambda loss, correct, size: size.__setitem__(3, 0),
    "a batch of fewer": lambda loss, correct, size: size.__setitem__(3, -8),
    "more than all correct": lambda loss, correct, size: correct.__setitem__(3, 9),
    "fewer than none correct": lambda loss, correct, size: correct.__setitem__(3, -1),
    "no number": lambda loss, correct, size: loss.__setitem__(3, np.nan),
    "infinity": lambda loss, correct, size: loss.__setitem__(-2, np.inf),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_steps_that_cannot_be_are_refused_by_name(run, kind):
    trajectory = read_run(run).trajectory
    ARRAYS[kind](trajectory.loss, trajectory.correct, trajectory.size)
    store.write_trajectory(run, trajectory)
    change(run, trajectory_digest=trajectory.digest())
    with pytest.raises(DamagedError, match=r"trajectory\.npz"):
        read_run(run)


def test_a_diverged_run_and_one_whose_accuracy_is_unknown_are_read(run):
    trajectory = read_run(run).trajectory
    trajectory.correct[:] = -1
    rewrite(run, trajectory)
    change(run, accuracy=None)
    assert (read_run(run).trajectory.correct == -1).all()
    trajectory.loss[:] = 3
    trajectory.loss[-1] = np.nan
    rewrite(run, trajectory, ended=Status.DIVERGED)
    change(run, accuracy=None)
    assert read_run(run).result.status is Status.DIVERGED


def archive_of(shape: str, size: int, compression: int) -> bytes:
    """Arrays of so many zero bytes, whose headers say what they like."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, dtype in (("loss", "<f4"), ("correct", "<i4"), ("size", "<i4")):
            header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n"
            magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
            archive.writestr(f"{name}.npy", magic + header.encode() + bytes(size))
    return content.getvalue()


def test_a_small_file_that_unpacks_to_a_large_one_is_not_unpacked(run):
    content = archive_of("(2500000,)", 10**7, zipfile.ZIP_DEFLATED)
    assert len(content) < 10**5
    (run / store.TRAJECTORY).write_bytes(content)
    with pytest.raises(DamagedError, match="compressed"):
        read_run(run)


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(-375,)", "(5, 75)", "()", "(374,)"])
def test_a_header_that_promises_something_else_is_refused(run, shape):
    content = archive_of(shape, 4 * 375, zipfile.ZIP_STORED)
    (run / store.TRAJECTORY).write_bytes(content)
    with pytest.raises(DamagedError, match=r"loss (has|is)"):
        read_run(run)


ODD = [  # hyperparameters of a type that JSON has, but not of a number that can be swept
    {"betas": None}, {"betas": 0.9}, {"betas": []}, {"betas": [0.9]}, {"betas": ["0.9", None]},
    {"betas": [0.9, 0.99, 0.999]}, {"betas": [2, -1]}, {"betas": {"a": 1}}, {"momentum": "0.9"},
    {"momentum": None}, {"momentum": 1.0}, {"momentum": 10**400}, {"momentum": float("nan")},
    {"betas": [5e-324, 0.5]}, {"betas": [0.0, 0.0]}, {"momentum": True}, {"nested": [{"a": [1]}]},
]  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "momentum_ema", "adam", "mine"])
def test_odd_hyperparameters_are_not_swept(tmp_path, optimizer):
    pattern = make_run(tmp_path / "study", optimizer, 8, 2)
    runs = [
        replace(pattern, hyperparameters=odd, lr=lr, configuration={"warmup_samples": warmup})
        for odd in ODD
        for lr in (1e-3, 1e-2, 1e-300)
        for warmup in (0, None, "long")
    ]
    panels = hyperparameter_panels(runs)
    assert panels and {panel.name for panel in panels} == {"lr"}
    for panel in panels:
        assert panel.describe()
        for value in panel.values:
            assert all(map(np.isfinite, panel.bounds(value).values()))


def test_figures_of_a_study_with_every_odd_and_absurd_run(tmp_path):
    study = tmp_path / "odd"
    for number, odd in enumerate(ODD):
        make_run(study, "adam", 8, 2 + number, seed=number, variant="adam")
        directory = next(study.glob(f"*-seed{number}-*"))
        rate = (1e-3, 1e-2, 1e-1)[number % 3]
        configuration = {"warmup_samples": (0, None, "long")[number % 3], "odd": odd}
        change(directory, hyperparameters=odd, lr=rate, configuration=configuration)
    for number, (key, value) in enumerate(ABSURD):
        make_run(study, "adam", 8, 3, seed=1000 + number)
        change(next(study.glob(f"*-seed{1000 + number}-*")), **{key: value})
    lines = write_study(study)
    skipped = [line for line in lines if line.startswith("skipped ")]
    assert len(skipped) == len(ABSURD) and all(line.isprintable() for line in skipped)
    found, _ = read(study)
    assert len(found.runs) == len(ODD) and dict(figures_of(found))
