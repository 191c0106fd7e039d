"""The paper's study as it is published: page, figures and tables are what `make paper` writes."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.testing.compare import compare_images

from cbs_lightning.errors import UserError
from cbs_lightning.reporting.paper import __main__ as command
from cbs_lightning.reporting.paper.cells import STUDIES
from cbs_lightning.reporting.paper.page import BLOCK, fill
from cbs_lightning.reporting.paper.study import read_published
from cbs_lightning.reporting.paper.write import write_page
from cbs_lightning.reporting.published import publish
from cbs_lightning.results.store import read_study
from tests.studies import make_run, rewrite

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CIFAR, MNIST = STUDIES
FITTED = ("critical", "forms")  # blocks with numbers of fits, whose last digits are a machine's
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def figure_files(folder):
    return {path.name for path in folder.glob("*.png")}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What a fresh clone has of it, written anew."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copy(ROOT / "README.md", folder)
    (folder / "docs" / "paper").mkdir(parents=True)
    for name in ("paper.md", "index.md"):
        shutil.copy(DOCS / name, folder / "docs")
    for path in published():
        shutil.copy(path, folder / "docs" / "paper")
    printed = write_page(folder / "docs")
    return folder, printed


def published():
    return [path for study in STUDIES for path in (DOCS / "paper").glob(f"{study.name}*.csv")
            if not path.stem.endswith("_tables")]  # fmt: skip


def blocks_of(path):
    return {name: match for match, name in _blocks(path.read_text())}


def _blocks(text):
    return [(match[0], match[2]) for match in BLOCK.finditer(text)]


def assert_alike(found, expected):
    """The same words, and numbers within what rounding may move on another machine."""
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    pairs = zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True)
    for one, other in ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs):
        assert one == pytest.approx(other, rel=0.1, abs=0.03)


@pytest.mark.parametrize("page", ["docs/paper.md", "docs/index.md", "README.md"])
def test_the_pages_are_what_make_paper_writes(written, page):
    folder, _ = written
    assert BLOCK.sub("", (folder / page).read_text()) == BLOCK.sub("", (ROOT / page).read_text())
    found, expected = blocks_of(folder / page), blocks_of(ROOT / page)
    assert found.keys() == expected.keys() and found
    for name, text in found.items():
        if name in FITTED:
            assert_alike(text, expected[name])
        else:
            assert text == expected[name], name


def test_the_files_are_what_make_paper_writes(written):
    folder = written[0] / "docs" / "paper"
    there = {path.name for path in (DOCS / "paper").iterdir()}
    assert {path.name for path in folder.iterdir()} == there
    for name in sorted(there):
        if name.endswith(".png"):
            differ = compare_images(str(DOCS / "paper" / name), str(folder / name), tol=6)
            assert differ is None, differ
        else:
            assert (folder / name).read_text() == (DOCS / "paper" / name).read_text(), name


def test_every_number_of_the_page_is_printed(written):
    folder, printed = written
    text = "\n".join(printed)
    for block, name in _blocks((folder / "docs" / "paper.md").read_text()):
        for line in block.splitlines()[1:-1]:
            assert line in text, name


def test_every_measured_number_is_in_the_published_file():
    study = read_published(CIFAR, DOCS / "paper")
    page = (DOCS / "paper.md").read_text()
    for row in study.answers:
        if row.steps is not None and sum(
            (run.variant, run.batch_size) == (row.variant, row.batch_size) for run in study.answers
        ) == 1:  # fmt: skip
            assert f"| {row.steps:,} | {row.sfo:,} | {100 * row.accuracy:.2f} |" in page


def test_curves_can_be_redrawn_from_the_epochs():
    study = read_published(CIFAR, DOCS / "paper")
    for curve in (curve for own in study.loss_curves.values() for curve in own):
        result = curve.result
        assert curve.steps[-1] == result.steps_run
        if result.steps is not None:
            (at_k,) = curve.loss[curve.steps == result.steps]
            assert at_k == pytest.approx(result.loss, rel=1e-4)


def test_the_published_files_stay_small():
    assert published()
    assert all(path.stat().st_size < 10**6 for path in published())


@pytest.fixture
def docs(tmp_path):
    """A small made-up study, published; the paper has all of its cells."""
    study = tmp_path / "out" / "cifar10_resnet20"
    for batch_size, epochs in ((4, 5), (8, 3), (16, 4), (32, 7)):
        make_run(study, "adam", batch_size, epochs)
    make_run(study, "sgd", 64, 10, reached=False)
    make_run(study, "momentum", 4, 6)
    make_run(study, "momentum", 1024, 10, reached=False)
    for run in read_study(study)[0]:
        losses = replace(run.trajectory, loss=run.trajectory.loss / 10)
        rewrite(run.directory, losses, threshold=0.1)
    publish(study, tmp_path / "docs" / "paper")
    shutil.copy(DOCS / "paper.md", tmp_path / "docs")
    return tmp_path / "docs"


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["paper", *map(str, arguments)])
    command.main()


def test_a_study_in_part_says_what_is_missing(docs):
    text = "\n".join(write_page(docs))
    assert "7 of 32 cells are measured" in text
    assert "- SGD: 1 of 8. Still missing: b = 2², 2³" in text
    assert "SGD did not reach the threshold at b = 2⁶. " in text
    only = "Momentum has reached the threshold only at b = 2² so far (K·b = 6,000), and did not at"
    assert f"{only} b = 2¹⁰. " in text
    assert "Adam's K·b is smallest at b = 2³ (K·b = 3,000); the paper reports 2¹¹." in text
    assert "7 of 7 measured cells end as in the paper" in text
    assert figure_files(docs / "paper") >= {"figure_1.png", "figure_2.png"}
    assert "figure_3.png" not in figure_files(docs / "paper")
    assert "| 2⁶ | exhausted |" in text and "**ResNet-18 on MNIST**: 0 of 29" in text
    assert "- SGD: none of 8.\n" in text and "Momentum is not measured yet. " in text  # on MNIST


def test_a_users_own_runs_stand_beside_the_published_ones(docs, tmp_path, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    run_command(monkeypatch, tmp_path / "out", f"--docs={docs}")
    out = capsys.readouterr().out
    assert "cifar10_resnet20: 7 runs of yours" in out and "adam (yours): use b = 8" in out
    table = (tmp_path / "out" / "paper" / "cifar10_resnet20_tables.csv").read_text()
    theirs, yours = (
        [line for line in table.splitlines() if line.startswith(f"{name},8,")]
        for name in ("adam", "adam (yours)")
    )
    assert [line.split(",", 1)[1] for line in theirs] == [line.split(",", 1)[1] for line in yours]
    assert not any(line.startswith("adam (yours),2048") for line in table.splitlines())
    assert (tmp_path / "out" / "paper" / "figure_2.pdf").exists()
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (",375,3000,", ",375,3001,", "column sfo"),
        ("epoch,1000", "epoch,0", "column window"),
        ("cifar10_resnet20,adam", "imagenet,adam", "column study"),
        ("schema_version,", "schema_version,colour,", "row 1, column colour"),
        ("effective_batch_size,", "", "row 1, column effective_batch_size: is missing"),
        ("digits", "dig\x07its", "column data"),
        ("adam", '"adam', "no table"),
    ],
)
def test_a_damaged_file_takes_one_line_and_writes_nothing(
    docs, monkeypatch, capsys, old, new, named
):
    path = docs / "paper" / "cifar10_resnet20.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    page = (docs / "paper.md").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        run_command(monkeypatch, f"--docs={docs}")
    line = str(stopped.value)
    assert line.startswith(f"error: {path}") and named in line and "\n" not in line
    assert figure_files(docs / "paper") == set() and (docs / "paper.md").read_bytes() == page


@pytest.mark.parametrize(
    ("old", "new", "named"), [(",2,", ",3,", "epoch"), ("0.09", "nan", "loss")]
)
def test_a_damaged_file_of_epochs_takes_one_line(docs, monkeypatch, old, new, named):
    path = docs / "paper" / "cifar10_resnet20_epochs.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SystemExit, match=rf"row \d+, column {named}"):
        run_command(monkeypatch, f"--docs={docs}")


def test_a_row_that_is_there_twice_is_refused(docs, monkeypatch):
    path = docs / "paper" / "cifar10_resnet20.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(SystemExit, match="column config_hash: is that of row 2 once more"):
        run_command(monkeypatch, f"--docs={docs}")


def test_nothing_published_and_no_such_directory(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"no published study; expected: cifar10_resnet20\.csv"):
        run_command(monkeypatch, f"--docs={tmp_path}")
    with pytest.raises(SystemExit, match=r"OUTPUT_DIR=.*no such directory"):
        run_command(monkeypatch, tmp_path / "gone")


def test_an_unknown_block_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no block is called 'moon'; allowed: sun"):
        fill("<!-- make paper: moon -->\n<!-- end -->", {"sun": []}, tmp_path)


def test_as_a_command_without_torch(tmp_path):
    """Drawing needs no training code."""
    code = (
        "import sys; from cbs_lightning.reporting.paper.write import write_page; "
        "sys.exit('lightning' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_older_published_files_lack_what_was_added_later(docs):
    path = docs / "paper" / "cifar10_resnet20.csv"
    lines = path.read_text().splitlines()
    assert lines[0].endswith(",waited,losses_from,reads_budget")
    path.write_text("".join(f"{line.rsplit(',', 3)[0]}\n" for line in lines))
    assert read_published(CIFAR, docs / "paper").answers


def test_every_run_of_the_users_is_finished(docs, tmp_path):
    runs, _ = read_study(tmp_path / "out" / "cifar10_resnet20")
    found = read_published(CIFAR, docs / "paper", tmp_path / "out")
    assert len(found.answers) == 2 * len(runs)
