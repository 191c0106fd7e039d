"""The installed package: its commands work from an empty directory, with the core alone."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = (
    "submitit",
    "hydra_submitit_launcher",
    "wandb",
    "mlflow",
    "pytorch_optimizer",
    "schedulefree",
)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The programs of a new virtual environment, with the wheel and what it needs at least."""
    pytest.importorskip("setuptools")
    source, folder = (tmp_path_factory.mktemp(name) for name in ("source", "installed"))
    for name in ("cbs_lightning", "conf", "hydra_plugins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={folder}",
        str(source))  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    lend_packages(next((folder / "venv" / "lib").glob("python*/site-packages")))
    return python.parent


def lend_packages(site_packages: Path) -> None:
    """Put the packages of this environment there, but those of extras."""
    ours = Path(sysconfig.get_path("purelib"))
    for folder in (ours, ours / "hydra_plugins"):
        for path in folder.iterdir():
            target = site_packages / path.relative_to(ours)
            if not path.name.startswith(EXTRAS) and not target.exists():
                target.symlink_to(path)


def call(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_a_sweep_from_an_empty_directory(installed, tmp_path):
    """Its figures and report, by the commands that it prints."""
    done = call(
        installed / "cbs-train", "-m", "batch_size=64,128", "stop.max_steps=2", "threads=1",
        "jobs=2", "report=false", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(list(tmp_path.glob("outputs/digits_resnet20/*/result.json"))) == 2
    for program in ("cbs-figures", "cbs-report"):
        done = call(installed / program, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    study = tmp_path / "outputs" / "digits_resnet20"
    assert (study / "figures" / "contact_sheet.png").exists() and (study / "report.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_what_an_extra_is_for_is_said_in_one_line(installed, tmp_path):
    done = call(
        installed / "python", "-m", "cbs_lightning", "-m", "hydra/launcher=slurm", cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: hydra/launcher=slurm: needs the package submitit: "
        "pip install 'cbs_lightning[slurm]'\n"
    )
