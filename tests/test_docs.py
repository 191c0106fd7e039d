"""What the documentation says exists."""

import json
import re
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.fit import fit
from cbs_lightning.reporting.study_files import write_study
from hydra_plugins.cbs_grid_sweeper import GridSweeper

ROOT = Path(__file__).parents[1]
ANSWER = (ROOT / "docs" / "answer.md").read_text()
PROMISES = (ROOT / "docs" / "promises.md").read_text()
NAME = r"`\w+`(?: \([^)]*\))?"
CITED = re.findall(rf"`(test_\w+\.py)`(: {NAME}(?:, {NAME})*)?", PROMISES)


@pytest.mark.parametrize(("file", "names"), CITED)
def test_every_promise_has_the_test_it_cites(file, names):
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    for name in re.findall(r"`(\w+)`", names):
        assert any(name in test for test in tests), f"{file} has no test named *{name}*"


def test_every_row_of_promises_cites_something():
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not re.match(r"\| (---|what happens|promise )", row)]
    assert len(rows) > 20 and len(CITED) > 20
    for row in rows:
        shown_by = row.rstrip(" |").rpartition("|")[2]
        assert "test_" in shown_by or "make " in shown_by, row


def test_every_file_that_the_readme_links_to_exists():
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.parametrize(
    "text", [ANSWER, (ROOT / "README.md").read_text()], ids=["answer", "readme"]
)
def test_the_examples_of_fits_and_theory_run_and_print_what_they_say(text, capsys):
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if "cbs_lightning.fit" in block or "theory" in block]
    assert blocks
    for block in blocks:
        exec(block, {})
        said = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
        for line, wanted in zip(capsys.readouterr().out.splitlines(), said, strict=True):
            assert line == wanted.partition(":")[0]


def test_the_example_of_a_trainer_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "own_model.md").read_text()
    _, block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    found = [line.split() for line in lines if line.split()[1:2] == ["reached"]]
    assert [int(row[0]) for row in found] == [8, 16, 32, 64]
    assert all(int(row[0]) * int(row[2]) == int(row[3]) for row in found)
    assert any("use b =" in line for line in write_study(tmp_path / "outputs" / "mine"))


def test_from_an_empty_folder_to_a_figure(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `main` does
    text = (ROOT / "docs" / "own_model.md").read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    model, data = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for path, content in (
        ("mine.py", code), ("conf/model/net.yaml", model), ("conf/data/points.yaml", data),
    ):  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    (command,) = re.findall(r"^cbs-train (.*)$", text, re.MULTILINE)
    ended = cli(*command.split())
    assert ended.code == 0, ended.err
    assert "own: use b =" in ended.out and "adam: use b =" in ended.out
    assert (tmp_path / "outputs/points_net/figures/sfo.png").exists()


def test_the_experiment_of_the_page_on_sweeps_makes_the_runs_it_says():
    text = (ROOT / "docs" / "sweeps.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    widths, params = map(yaml.safe_load, blocks)
    assert widths["defaults"] == [{"override /data": "mnist"}, {"override /model": "resnet18"}]
    sweeper = GridSweeper(**widths["hydra"]["sweeper"])
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        sweeper.config_loader = GlobalHydra.instance().config_loader()
        assert len(sweeper.jobs([])) == 4 + 8
        assert len(sweeper.jobs(["optimizer=sgd"])) == 4
        assert len(sweeper.jobs(["optimizer=adamw"])) == 4 + 8
        usual = GridSweeper(**params["hydra"]["sweeper"])
        usual.config_loader = sweeper.config_loader
        assert len(usual.jobs([])) == 6 and len(usual.jobs(["batch_size=4", "seed=0,1"])) == 4


def test_the_table_of_published_curves():
    """Its ranges of RMS errors are those of fits made now."""
    series = json.loads((ROOT / "tests" / "published_curves.json").read_text())["series"]
    for title, group in (
        ("five published language models", series[:5]),
        ("three published image classifiers", series[5:]),
    ):
        (row,) = [line for line in ANSWER.splitlines() if line.startswith(f"| {title}")]
        cells = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        for model, cell in zip(("iiduka", "mccandlish", "nested"), cells, strict=True):
            errors = [fit(s["batch_sizes"], s["steps"], model).rms_log_error for s in group]
            assert cell == f"{min(errors):.2f} to {max(errors):.2f}"


def test_the_example_of_parameter_groups_prints_what_it_says(capsys):
    text = (ROOT / "docs" / "optimizers.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    (said,) = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out == f"{said}\n"


def test_the_page_of_optimizers_lists_them_all():
    text = (ROOT / "docs" / "optimizers.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for path in (ROOT / "conf" / "optimizer").glob("*.yaml"):
        if path.stem not in ("own", "default"):
            assert f"`{path.stem}`" in text and f"`{path.stem}`" in readme, path.stem
