"""Code and configuration of a user's own, in the current directory: nothing is copied."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import initialize_config_dir

from cbs_lightning.config.composition import CONF_DIR, compose
from cbs_lightning.config.grammar import list_of, quoted
from cbs_lightning.sweep.slurm import queue as slurm
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]
NET = """
from torch import nn

from cbs_lightning.models import Classifier


class Mine(Classifier):
    def __init__(self, *arguments, width=4, **classifier):
        self.width = width
        super().__init__(*arguments, **classifier)

    def build_net(self, in_channels, num_classes):
        hidden = nn.Linear(64 * in_channels, self.width)
        return nn.Sequential(nn.Flatten(), hidden, nn.Linear(self.width, num_classes))
"""
EXPERIMENT = """
# @package _global_
defaults:
  - override /model: mine
optimizer:
  lr: 0.01
model:
  width: 6
hydra:
  sweeper:
    grid:
      - optimizer: adam
        batch_size: 64,128
      - optimizer: sgd
        data.normalize: true
        micro_batch_size: null
"""
SHORT = ["threads=1", "stop.max_steps=2", "report=false"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a net, and with a model and an experiment below `conf`."""
    folder = tmp_path / "it's, [mine]"
    for name, text in {
        "strangers_net.py": NET,
        "conf/model/mine.yaml": "_target_: strangers_net.Mine\nwidth: 4\n",
        "conf/model/theirs.yaml": "_target_: strangers_net.Mine\nwidth: 8\n",
        "conf/experiment/ours.yaml": EXPERIMENT,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def variants(folder: Path) -> list[tuple[str, int]]:
    results = [json.loads(path.read_text()) for path in folder.glob("outputs/*/*/result.json")]
    return sorted((result["variant"], result["batch_size"]) for result in results)


def test_the_current_directory_is_importable_also_in_workers(own):
    command = [sys.executable, str(ROOT / "train.py"), "--config-dir", "./conf"]
    arguments = ["experiment=ours", "jobs=2", "-m", *SHORT]
    done = subprocess.run(
        [*command, *arguments], cwd=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 jobs, 2 at a time" in done.stdout
    assert variants(own) == [("adam", 64), ("adam", 128), ("sgd normalize=true", 64)]
    assert sorted(path.name for path in own.iterdir() if path.name != "__pycache__") == [
        "conf", "outputs", "strangers_net.py"
    ]  # fmt: skip


def test_a_cluster_s_jobs_find_the_current_directory(own, tmp_path, monkeypatch):
    for name in ("sbatch", "srun"):  # submitit looks for them
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = {"setup": None, "max_num_timeout": 1}
    setup = slurm.executor(settings, tmp_path).parameters["setup"]
    done = subprocess.run(
        ["/bin/bash", "-c", f"{setup[0]}; echo $PYTHONPATH"], env={"PYTHONPATH": "/before"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == f"{ROOT}:{own}:/before"


LABELS = [
    (["experiment=ours"], "adam"),
    (["experiment=ours", "optimizer.lr=0.001"], "adam lr=0.001"),
    (["experiment=ours", "model.width=4"], "adam width=4"),
    (["study=ours", "model=mine"], "adam width=4 lr=0.001"),
    (["experiment=ours", "model=theirs"], "adam theirs"),
    (["experiment=ours", "model=theirs", "model.width=7"], "adam theirs width=7"),
    (["experiment=digits", "model=mine", "model.width=3"], "adam mine width=3"),
    (["experiment=digits", "model=mine", "model.width=5"], "adam mine width=5"),
    (["experiment=digits", "model=mine"], "adam mine"),
    (["model=mine", "model.width=3"], "adam width=3"),
    (["study=all", "model=mine", "+data.width=3"], "adam mine data.width=3"),
    (["study=all", "model=mine", "model.width=3", "+data.width=3"],
     "adam mine data.width=3 model.width=3"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "label"), LABELS, ids=[" ".join(o) for o, _ in LABELS])
def test_labels_are_those_that_the_experiment_would_have_in_conf(own, tmp_path, overrides, label):
    """Also through `hydra.searchpath`, whatever the folder is called."""
    copied = shutil.copytree(CONF_DIR, tmp_path / "conf")
    shutil.copytree(own / "conf", copied, dirs_exist_ok=True)
    with initialize_config_dir(str(copied), version_base="1.3"):
        assert compose(overrides).names.variant == label
    searchpath = list_of([f"file://{own}/conf"])
    assert compose([f"hydra.searchpath={searchpath}", *overrides]).names.variant == label


def test_a_config_directory_gives_the_same_labels(own, cli):
    given = ["--config-dir", "conf", *SHORT]
    outcome = cli(*given, "experiment=ours", "model.width=5")
    assert outcome.code == 0, outcome.err
    outcome = cli(*given, "-m", "experiment=digits", "model=mine", "model.width=3,5", "jobs=1",
                  "batch_size=64", "optimizer=adam")  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert variants(own) == [
        ("adam mine width=3", 64), ("adam mine width=5", 64), ("adam width=5", 64)
    ]  # fmt: skip


def test_hydras_own_params_are_swept_unless_the_command_line_has_others(own, cli):
    (own / "conf" / "experiment" / "usual.yaml").write_text(
        "# @package _global_\nhydra:\n  sweeper:\n    params:\n"
        "      batch_size: 64,128\n      seed: 0\n      optimizer.lr: 1e-3,1e-2\n"
    )
    given = [
        *TINY[1:], "--config-dir", "conf", "-m", "experiment=usual", "model=mine",
        "stop.max_steps=1", "seed=0,1",
    ]  # fmt: skip
    given.remove("batch_size=256")
    given.remove("model=tiny")
    outcome = cli(*given)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("8 jobs, ")
    outcome = cli(*given, "batch_size=32", "optimizer.lr=1e-3", "hydra/sweeper=critical_batch")
    assert "b = 32 alone is within the range" in outcome.err  # a search reads them too


@pytest.mark.parametrize(
    ("sweeper", "parts"),
    [
        ("grid: 5", ["hydra.sweeper.grid=5", "must be a list of rows"]),
        ("grid: [4]", ["hydra.sweeper.grid[0]=4", "must be keys with their values"]),
        ("params: 5", ["hydra.sweeper.params=5", "must be keys with their values"]),
        ("params: {optimizer: {lr: '1,2'}}", ["keys have dots here, such as optimizer.lr: '1,2'"]),
        ("grid: [{batch_size: [4, 8]}]", ["batch_size=[4, 8]", "without brackets: batch_size=4,8"]),
        ("params: {batchsize: 4}", ["batchsize", "batch_size"]),
        ("params: {optimizer: 'own,sgd', optimizer.lr: 1}", ["optimizer.lr: not every option of"]),
    ],
)
def test_what_cannot_be_swept_is_said_in_one_line(own, cli, sweeper, parts):
    (own / "conf" / "experiment" / "wrong.yaml").write_text(
        f"# @package _global_\nhydra:\n  sweeper:\n    {sweeper}\n"
    )
    outcome = cli("--config-dir", "conf", "-m", "experiment=wrong", *SHORT)
    assert outcome.code == 1 and len(outcome.err.strip().splitlines()) == 1, outcome.err
    for part in parts:
        assert part in outcome.err
    assert not (own / "outputs").exists()


def test_a_file_that_would_never_be_read_is_refused(own, cli):
    (own / "conf" / "optimizer").mkdir()
    mine = own / "conf" / "optimizer" / "adam.yaml"
    shutil.copy(CONF_DIR / "optimizer" / "adam.yaml", mine)  # the same says the same
    given = ["--config-dir", "conf", "model=mine", *SHORT]
    assert cli(*given).code == 0
    mine.write_text(mine.read_text().replace("1e-3", "1e-2"))
    outcome = cli(*given)
    assert outcome.code == 1
    assert outcome.err == (
        "error: conf/optimizer/adam.yaml: this project has a file of that name, which is used "
        "instead; give yours another name\n"
    )


@pytest.mark.parametrize("text", ["a", "it's", "\\", "a\\'b\\\\", "a, [b]=c", "", '"'])
def test_a_quoted_text_is_read_as_it_is(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([f"a={quoted(text)}"])
    assert parsed.value() == text
