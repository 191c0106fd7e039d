"""What the documentation says exists."""

import importlib
import json
import re
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from joblib.externals.loky import get_reusable_executor

import cbs_lightning
import cbs_lightning.fit
import cbs_lightning.theory
from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.config.schema import RunConfig
from cbs_lightning.fit import fit
from cbs_lightning.reporting import configuration_page
from cbs_lightning.reporting.study_files import write_study
from hydra_plugins.cbs_grid_sweeper import GridSweeper

ROOT = Path(__file__).parents[1]
ANSWER = (ROOT / "docs" / "answer.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
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


LINK = re.compile(r"""\]\(([^)\s]+)\)|(?:src|href)="([^"]+)\"""")
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """Of its headings, as both the site and GitHub make them of plain words."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", t)) for t in titles]
    return {re.sub(r"\s+", "-", each.strip().lower()) for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = [first or second for first, second in LINK.findall(text)]
    assert links or page.name != "README.md"
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_in_the_sites_navigation():
    text = (ROOT / "mkdocs.yml").read_text().partition("\ntheme:")[0]
    listed = re.findall(r": (\w+\.md)$", text, re.MULTILINE)
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(listed) == sorted(there)  # each once


def test_every_public_name_is_in_the_api_reference():
    shown = set(re.findall(r"^::: cbs_lightning\.[\w.]*\.(\w+)$", API, re.MULTILINE))
    assert {*cbs_lightning.__all__, *cbs_lightning.fit.__all__, *cbs_lightning.theory.__all__} - {
        "__version__"
    } <= shown
    for path in re.findall(r"^::: ([\w.]+)$", API, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name).__doc__, path


def test_the_page_of_keys_is_what_make_docs_writes():
    assert configuration_page.page() == CONFIGURATION, "make docs writes it anew"


def test_the_page_of_keys_has_them_all_with_default_and_description():
    rows = re.findall(r"^\| `([\w.]+)` \| `.*?\| (.*?) \| (.*?) \|$", CONFIGURATION, re.MULTILINE)
    about = {key: text for key, _, text in rows}
    for key, allowed in configuration_page.allowed_values(RunConfig):
        if not key.startswith("names."):
            assert about[key], key
            assert allowed or key in ("compile", "repeat"), key


def test_a_new_key_gets_its_row(tmp_path, monkeypatch):
    """Without another line of code: from its default, its comments, and a heading above it."""
    text = (CONF_DIR / "config.yaml").read_text()
    added = (
        "\n# Cups\n# Of tea, see docs/sweeps.md.\nstop:\n  loss: 3   # of b* | tea,\n" + " " * 27
    )
    (tmp_path / "config.yaml").write_text(f"{text.partition('# When')[0]}{added}# not lr_scaling\n")
    *_, cups = configuration_page.sections(tmp_path / "config.yaml")
    assert (cups.title, cups.about) == ("Cups", "Of tea, see docs/sweeps.md.")
    assert cups.keys == [configuration_page.Key("stop.loss", "3", "of b* | tea, not lr_scaling")]
    shown = configuration_page.linked(f"{cups.about} {cups.keys[0].about}")
    assert shown == r"Of tea, see [sweeps.md](sweeps.md). of b\* \| tea, not `lr_scaling`"


def test_the_citation_is_of_this_version_and_names_the_paper():
    """The keys that version 1.2.0 of the format requires."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["version"] == cbs_lightning.__version__
    assert cited["message"] and cited["title"] and cited["authors"]
    (paper,) = cited["references"]
    assert paper["authors"][0]["family-names"] == "Iiduka" and "2208.09814" in paper["url"]
    assert {"type", "title"} <= paper.keys()
    assert f"## {cbs_lightning.__version__}:" in (ROOT / "CHANGELOG.md").read_text()


def test_the_example_of_a_trainer_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "own_model.md").read_text()
    _, block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    found = [line.split() for line in lines if line.split()[1:2] == ["reached"]]
    assert [int(row[0]) for row in found] == [8, 16, 32, 64]
    assert all(int(row[0]) * int(row[2]) == int(row[3]) for row in found)
    told = write_study(tmp_path / "outputs" / "mine")
    assert any("use b =" in line for line in told)
    assert any("(4 runs, seed 0)" in line for line in told)


def test_from_an_empty_folder_to_a_figure(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `main` does
    get_reusable_executor().shutdown()  # an earlier test's workers do not look into this folder
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


def test_the_page_of_optimizers_lists_them_all():
    text = (ROOT / "docs" / "optimizers.md").read_text()
    for path in (ROOT / "conf" / "optimizer").glob("*.yaml"):
        if path.stem not in ("own", "default"):
            assert f"`{path.stem}`" in text and f"`{path.stem}`" in CONFIGURATION, path.stem
