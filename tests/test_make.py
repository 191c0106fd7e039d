"""What is given to make reaches programs as it is, and is never run."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cbs_lightning.config.composition import compose
from cbs_lightning.reporting import tensorboard_server
from cbs_lightning.sweep.report import _finish
from tests.conftest import TINY
from tests.studies import make_run

ROOT = Path(__file__).parents[1]
HOSTILE = [
    "a b, c=d [1]",
    "it's",
    'say "so"',
    "`touch pwned`",
    "$(touch pwned)",
    "$(shell touch pwned)",
    "$$(touch pwned)",
    '"; touch pwned; "',
    "'; touch pwned; '",
    "'\"; touch pwned; \"'",
    "; touch pwned #",
    "a\\",
    "${HOME} $HOME $$",
    "${oc.env:HOME}",
    "*",
    "-x",
    "--help",
    "two\nlines; touch pwned",
    "__import__('os').system('touch pwned')",
]
RECORD = f"""#!{sys.executable}
import json, os, sys
with open("called", "a") as file:
    print(json.dumps([sys.argv[1:], os.environ.get("CBS_OUTPUT_DIR")]), file=file)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A Makefile whose programs do nothing but leave their arguments in the file `called`."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(RECORD)
    (programs / "python").chmod(0o755)
    for name in ("requirements.lock", "requirements-build.lock", ".venv/.installed"):
        (tmp_path / name).touch()
    return tmp_path


def make(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=project, env=os.environ | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def calls(project: Path) -> list[tuple[list[str], str | None]]:
    return [tuple(json.loads(line)) for line in (project / "called").read_text().splitlines()]


def given(target: str, project: Path, name: str) -> bool:
    """Whether the last program that the target called was told the name, as it is."""
    arguments, output_dir = calls(project)[-1]
    if target == "demo":
        return output_dir == name
    return (f"--output={name}/bench.json" if target == "bench" else name) in arguments


@pytest.mark.parametrize("way", ["argument", "environment"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_directory_with_any_name_is_passed_on_and_not_run(project, name, way):
    (project / name).mkdir()
    for target in ("figures", "report", "tensorboard", "demo", "bench"):
        if way == "argument":
            done = make(project, target, f"OUTPUT_DIR={name}")
        else:
            done = make(project, target, OUTPUT_DIR=name)
        assert done.returncode == 0, done.stderr
        assert given(target, project, name), (target, calls(project)[-1])
    assert not list(project.rglob("pwned"))


@pytest.mark.parametrize("name", ["LOSS", "RULE", "WINDOW", "WITHIN", "STUDY", "VARIANTS"])
def test_a_question_is_passed_on_as_it_is_and_only_if_there_is_one(project, name):
    for value in ("0.5", "it's $(touch pwned)", "--help"):
        for target in ("figures", "report"):
            assert make(project, target, f"{name}={value}").returncode == 0
            arguments, _ = calls(project)[-1]
            assert arguments[2:] == [f"--{name.lower()}={value}", "--", "outputs"]
    assert make(project, "figures", **{name: ""}).returncode == 0
    assert calls(project)[-1][0][2:] == ["--", "outputs"]
    assert not list(project.rglob("pwned"))


@pytest.mark.parametrize("variable", ["PORT", "EVERY", "RUNS", "PARTS", "OUTPUT_DIR", "LOSS"])
@pytest.mark.parametrize("value", HOSTILE)
def test_no_variable_is_run(project, variable, value):
    for target in ("tensorboard", "bench", "figures"):
        make(project, target, f"{variable}={value}")
        make(project, target, **{variable: value})
    assert not list(project.rglob("pwned"))


@pytest.fixture
def tensorboard(tmp_path, monkeypatch):
    """`cbs-tensorboard <arguments>`: what it would start, or the line that it ends with."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> list[str] | str:
        started: list[list[str]] = []
        monkeypatch.setattr(sys, "argv", ["cbs-tensorboard", *arguments])
        monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
        try:
            tensorboard_server.main()
        except SystemExit as ended:
            return str(ended.code)
        return started[0]

    return call


def test_a_port_is_checked_in_one_line(tensorboard, tmp_path):
    (tmp_path / "outputs").mkdir()
    for port in ("many", "-1", "70000", "__import__('os').system('touch pwned')"):
        said = tensorboard(f"--port={port}")
        assert said == f"error: --port={port}: must be a whole number up to 65535"
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        said = tensorboard(f"--port={port}")
        assert said == f"error: --port={port}: is taken; try another, such as 6007"
    assert not (tmp_path / "pwned").exists()
    assert tensorboard("$(nowhere)") == "error: $(nowhere): no such directory"


@pytest.mark.parametrize("name", HOSTILE)
def test_tensorboard_is_given_any_directory(tensorboard, tmp_path, name, capsys):
    (tmp_path / name).mkdir()
    command = tensorboard("--port=0", "--", name)
    assert f"--logdir={name}" in command and f"--window_title={name}" in command
    assert "http://localhost:0/#hparams" in capsys.readouterr().out


@pytest.mark.parametrize("variants", [39, 40])
def test_more_curves_than_tensorboard_ticks_are_said(tensorboard, tmp_path, variants, capsys):
    make_run(tmp_path / "outputs" / "study", "adam", 8, 2)
    for number in range(variants):
        (tmp_path / "outputs" / "study" / "_sweep" / f"adam,lr={number}").mkdir(parents=True)
    tensorboard("--port=0")
    hint = "There are 41 curves, too many for TensorBoard to tick by itself: press TOGGLE ALL RUNS"
    assert (hint in capsys.readouterr().out) == (variants == 40)


def test_what_the_targets_do_usually(project):
    (project / "outputs").mkdir()
    for target in ("figures", "report", "tensorboard", "demo", "bench"):
        assert make(project, target).returncode == 0
        assert given(target, project, "outputs")
    assert make(project, "bench", "EVERY=1", "RUNS=a b", "PARTS=steps growth").returncode == 0
    (arguments, _) = calls(project)[-1]
    assert arguments == [
        "-m", "benchmarks", "--every", "--runs=a b", "--output=outputs/bench.json", "--",
        "steps", "growth",
    ]  # fmt: skip
    (project / "steps").touch()
    assert make(project, "bench", "PARTS=*").returncode == 0
    assert calls(project)[-1][0][-1] == "*"


def test_the_site_is_built_from_a_new_page_of_keys_and_strictly(project):
    """Not with --quiet: mkdocs would then count no warnings, and fail for none."""
    programs = project / ".venv-docs" / "bin"
    programs.mkdir(parents=True)
    (project / "requirements-docs.lock").touch()
    (programs.parent / ".installed").touch()
    shutil.copy(project / ".venv" / "bin" / "python", programs / "mkdocs")
    assert make(project, "docs").returncode == 0
    assert [arguments for arguments, _ in calls(project)] == [
        ["-m", "cbs_lightning.reporting.configuration_page"], ["build", "--strict"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_command_that_is_printed_can_be_pasted(project, name, capsys):
    _finish(project / name / "study", None, [])
    command = capsys.readouterr().out.partition("to look at them: ")[2].strip()
    (project / name).mkdir()
    done = subprocess.run(["bash", "-c", command], cwd=project, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert given("tensorboard", project, str(project / name))
    assert shlex.split(command)[-1] == f"OUTPUT_DIR={project / name}"
    assert not list(project.rglob("pwned"))


@pytest.mark.parametrize("name", HOSTILE)
def test_where_runs_go_can_be_told_by_the_environment(name, monkeypatch):
    monkeypatch.setenv("CBS_OUTPUT_DIR", name)
    assert compose([]).output_dir == name
    assert compose(["output_dir=elsewhere"]).output_dir == "elsewhere"
    monkeypatch.delenv("CBS_OUTPUT_DIR")
    assert compose([]).output_dir == "outputs"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_runs_where_the_environment_says(cli, tmp_path, monkeypatch, jobs):
    name = 'it\'s "so", ${oc.env:HOME} $HOME `a`=[1]'
    monkeypatch.setenv("CBS_OUTPUT_DIR", str(tmp_path / name))
    outcome = cli("-m", *TINY, "seed=0,1", "stop.max_steps=1", f"jobs={jobs}")
    assert outcome.code == 0, outcome.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(list((tmp_path / name).glob("*/*/result.json"))) == 2


def test_no_variable_is_substituted_into_a_command():
    """But those that nobody is asked to set."""
    makefile = (ROOT / "Makefile").read_text()
    (question,) = re.findall(r"^override QUESTION = ((?:.*\\\n)+.*)$", makefile, re.MULTILINE)
    assert "$" not in question.replace("$$", "")  # the shell's variables alone
    recipes = [line for line in makefile.splitlines() if line[:1] == "\t"]
    used = set(re.findall(r"\$[({](\w+)", "\n".join(recipes).replace("$$", "")))
    assert used == {"BIN", "MAKEFILE_LIST", "QUESTION"}


def test_an_environment_elsewhere_is_not_emptied(project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "venv"
    (project / ".venv").rename(elsewhere)
    (project / ".venv").symlink_to(elsewhere)
    (elsewhere / ".installed").unlink()
    done = make(project, "setup")
    assert done.returncode != 0 and "error: .venv is a link" in done.stdout
    assert (elsewhere / "bin" / "python").exists()
