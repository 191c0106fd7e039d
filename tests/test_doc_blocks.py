"""Every block of code in README and docs: commands that are accepted, Python that runs."""

import io
import re
import shlex
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import lightning as L
import pytest
import torch
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from torch.utils.data import DataLoader, TensorDataset

from cbs_lightning.config.composition import compose
from tests.studies import make_run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^(python train\.py|cbs-train|cbs-\w+|make|pip install)\b")
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^override ([A-Z]+) :=", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_TEST = "own_model.md"  # test_docs.py runs its blocks, with the files that they need


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text()) if language in languages]


def command_lines(page: Path) -> list[str]:
    text = "\n".join(blocks(page, "", "bash", "sh", "console")).replace("\\\n", " ")
    return [line for line in text.splitlines() if PROGRAM.match(line)]


COMMANDS = [(page.name, line) for page in PAGES for line in command_lines(page)]


def test_there_are_commands_on_the_pages():
    assert len(COMMANDS) > 50 and {"README.md", "sweeps.md"} <= {name for name, _ in COMMANDS}
    known = {"", "bash", "sh", "console", "text", "python", "yaml", "mermaid"}
    for page in PAGES:
        assert {language for language, _ in BLOCK.findall(page.read_text())} <= known, page.name


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_every_command_is_accepted(page, line):
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        for word in words[1:]:
            name, assigned, _ = word.partition("=")
            assert name in (VARIABLES if assigned else TARGETS), f"{page}: {word}"
    elif words[0] == "pip":
        (extras,) = re.findall(r"\[(.*)\]", words[-1]) or [""]
        assert set(filter(None, extras.split(","))) <= PROJECT["optional-dependencies"].keys()
    elif words[0] in ("python", "cbs-train"):
        check_overrides([word for word in words[1:] if word not in ("train.py", "-m")])
    else:
        assert words[0] in PROJECT["scripts"], f"{page}: {line}"


def check_overrides(words: list[str]) -> None:
    """Compose them, with each value of what they sweep in turn."""
    if "--config-dir" in words or any(word.startswith("--") for word in words):
        return  # files of the reader's own, which test_docs.py has, or a flag of Hydra's
    words = [word for word in words if not word.startswith("repeat=")]  # a run of the reader's own
    parser = OverridesParser.create()
    parsed = [parser.parse_override(word) for word in words]
    first = [values(each)[0] for each in parsed]
    tries = [first] + [
        [*first[:place], value, *first[place + 1 :]]
        for place, each in enumerate(parsed)
        for value in values(each)[1:]
    ]
    for overrides in tries:
        compose(overrides)


def values(override: Override) -> list[str]:
    """The override itself, or one for each value of a sweep."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    prefix = (override.input_line or "").partition("=")[0]
    return [f"{prefix}={value}" for value in override.sweep_string_iterator()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_errors_are_those_that_a_page_shows(page, cli):
    """`$ command` and the line below it."""
    shown = re.findall(r"^\$ python train\.py (.*)\n(error: .*)$", page.read_text(), re.MULTILINE)
    assert shown or page.name != "trainer.md"
    for command, error in shown:
        ended = cli(*shlex.split(command))
        start = error.partition("...")[0]
        assert ended.code == 1 and ended.err.startswith(start), f"{command}: {ended.err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_can_be_read(page):
    for code in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(code), dict)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 2)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Data(L.LightningDataModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        inputs = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
        points = TensorDataset(inputs, (inputs[:, 0] > 0).long())
        return DataLoader(points, self.batch_size, shuffle=True)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder with what readers have: runs of the demo's study, and modules of their own."""
    monkeypatch.chdir(tmp_path)
    for batch_size in (16, 32):
        make_run(tmp_path / "outputs" / "digits", "adam", batch_size, epochs=2)
    project = ModuleType("my_project")
    project.MyModel, project.MyData = Model, Data  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_project", project)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.name != OWN_TEST],
    ids=lambda page: page.name,
)
@pytest.mark.usefixtures("reader")
def test_python_runs_and_prints_what_it_says(page):
    """The blocks of a page one after the other; a comment after a print is what it prints."""
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        lines = printed.getvalue().splitlines()
        if said := re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE):
            for line, wanted in zip(lines, said, strict=True):
                assert line in (wanted, wanted.partition(":")[0])
        if "my_project" in code:
            found = [line.split() for line in lines if line.split()[1:2] == ["reached"]]
            assert [int(row[0]) for row in found] == [16, 32, 64, 128]
            assert all(int(row[0]) * int(row[2]) == int(row[3]) for row in found)


def test_the_readme_quotes_the_answer_that_its_page_explains():
    answer = (ROOT / "docs" / "answer.md").read_text()
    for page in ("README.md", "docs/index.md"):
        quoted = [
            line for block in blocks(ROOT / page, "") for line in block.splitlines()
            if line.startswith(("adam:", "  "))
        ]  # fmt: skip
        assert quoted
        for line in quoted:
            assert line in answer, page
