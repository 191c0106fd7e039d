"""A study's published form: what is in it, what is kept, and what is refused."""

import shutil
from dataclasses import replace

import pytest

from cbs_lightning.analysis.summary import summary_rows
from cbs_lightning.errors import UserError
from cbs_lightning.reporting.published import (
    epochs_of,
    publish,
    published_files,
    read_epochs,
    read_results,
)
from cbs_lightning.results.store import read_study
from tests.studies import make_study


@pytest.fixture
def study(tmp_path):
    make_study(tmp_path / "out" / "study")
    return tmp_path / "out" / "study"


def test_what_is_published_is_what_the_summary_says(study, tmp_path):
    results, epochs = publish(study, tmp_path / "published")
    runs, _ = read_study(study)
    expected = [replace(row, configuration={}) for row in summary_rows(runs)]
    found = read_results(results)
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert len(read_epochs(epochs)) == sum(len(list(epochs_of(run))) for run in runs)
    before = results.read_bytes(), epochs.read_bytes()
    publish(study, tmp_path / "published")
    assert (results.read_bytes(), epochs.read_bytes()) == before


def test_runs_that_are_elsewhere_are_kept(study, tmp_path):
    results, _ = publish(study, tmp_path / "published")
    before = {row.config_hash for row in read_results(results)}
    shutil.rmtree(sorted(path for path in study.iterdir() if (path / "result.json").exists())[0])
    publish(study, tmp_path / "published")
    assert {row.config_hash for row in read_results(results)} == before


def test_nothing_is_written_for_a_study_without_a_finished_run(tmp_path):
    (tmp_path / "out" / "study").mkdir(parents=True)
    assert publish(tmp_path / "out" / "study", tmp_path / "published") == []
    assert not (tmp_path / "published").exists()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (",16,", ",many,", "column batch_size"),
        ("reached", "vanished", "column status"),
        ("variant,", "varient,", "column variant: is missing"),
        ("\n", "\n,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\n", "row 2"),
    ],
)
def test_a_damaged_table_is_refused_with_row_and_column(study, tmp_path, old, new, named):
    results, _ = publish(study, tmp_path / "published")
    text = results.read_text()
    assert old in text
    results.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=r"row \d+") as error:
        read_results(results)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_the_files_are_named_after_the_study(tmp_path):
    results, epochs = published_files(tmp_path, "cifar10_resnet20")
    assert (results.name, epochs.name) == ("cifar10_resnet20.csv", "cifar10_resnet20_epochs.csv")
