"""A search that begins with a prediction: its first run carries probes."""

import json
import re
from dataclasses import replace

import pytest

from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import run_directory
from cbs_lightning.noise.record import FILE, NoiseRecord
from cbs_lightning.results.store import read_run
from cbs_lightning.search.settings import SearchSettings
from cbs_lightning.sweep.combinations import combinations
from cbs_lightning.sweep.probed import UNKNOWN_FACTOR, Probed
from tests.conftest import TINY
from tests.test_probes import record_of
from tests.test_search_sweep import SEARCH, stored, trained  # noqa: F401

PROBES = ["hydra.sweeper.probes=3", "noise.samples=128"]


def probed_run(output_dir):
    (path,) = output_dir.glob(f"*/*/{FILE}")
    return path.parent


def test_the_first_run_carries_probes_and_their_gradients_count(cli, tmp_path, trained):  # noqa: F811
    arguments = [*SEARCH, *PROBES, f"output_dir={tmp_path}"]
    done = cli(*arguments)
    assert done.code == 0, done.err
    directory = probed_run(tmp_path)
    record, run = record_of(directory), read_run(directory)
    assert record.settings["probes"] == 3 and record.probes
    assert trained[0] == (run.result.batch_size, 0)
    if record.critical_batch is not None:
        predicted = (
            f"Probes at b = {run.result.batch_size} predicted b* = {record.critical_batch:.3g}"
        )
        assert predicted in done.out
    cost = record.cost.in_gradients
    assert cost > record.cost.gradients + 4 * record.cost.hessian_products > 0
    runs = [read_run(path.parent).result for path in tmp_path.glob("*/*/result.json")]
    of_runs = sum(each.effective_batch_size * each.steps_run for each in runs)
    assert f"{of_runs + cost:,} gradients ({cost:,} on probes)" in done.out
    # one run at first, whatever is proposed without a prediction
    rounds = re.findall(r"Next: (.*)\.\n", done.out)
    assert rounds[0] == f"b = {run.result.batch_size}"
    # the same command again trains nothing and remembers the prediction
    before, count = record_of(directory), len(trained)
    again = cli(*arguments)
    assert again.code == 0 and len(trained) == count and record_of(directory) == before
    assert "0 gradients;" in again.out or "0 gradients," in again.out


def test_probes_change_no_run_of_a_search(cli, tmp_path):
    assert cli(*SEARCH, f"output_dir={tmp_path / 'plain'}").code == 0
    assert cli(*SEARCH, *PROBES, f"output_dir={tmp_path / 'probed'}").code == 0
    plain, probed = stored(tmp_path / "plain"), stored(tmp_path / "probed")
    for key in plain.keys() & probed.keys():
        steps = min(len(plain[key][2]), len(probed[key][2]))
        assert plain[key][2][:steps] == probed[key][2][:steps]


def test_the_budget_of_gradients_holds_for_probes_too(cli, tmp_path, trained):  # noqa: F811
    arguments = [*SEARCH, *PROBES, "noise.samples=2000", f"output_dir={tmp_path}"]
    done = cli(*arguments, "hydra.sweeper.budget.gradients=4000")
    record, run = record_of(probed_run(tmp_path)), read_run(probed_run(tmp_path)).result
    of_run = run.steps_run * run.effective_batch_size
    assert of_run < 4000 < of_run + record.cost.gradients
    assert len(trained) == 1 and "budget is used up" in done.out


@pytest.fixture
def probed(tmp_path):
    """The first run of a search, with a record that says this."""

    def make(**said):
        cfg = compose([*TINY, "stop.loss=0.5", f"output_dir={tmp_path}"])
        record = NoiseRecord("", "adam", "adam", 1e-3, 256, 0, 0.5, "epoch", [])
        directory = run_directory(cfg)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE).write_text(replace(record, **said).to_json())
        return Probed((256, 0), cfg)

    return make


def test_the_prior_is_as_wide_as_the_predictions_interval(probed):
    found = probed(critical_batch=34.0, interval=(17.0, 68.0)).prediction()
    assert found.critical_batch == 34 and found.factor == pytest.approx(2 ** (1 / 1.645))
    for interval in (None, (0.0, 68.0), (17.0, float("inf"))):
        assert probed(critical_batch=34.0, interval=interval).prediction().factor == UNKNOWN_FACTOR
    assert probed(critical_batch=34.0, threshold=0.6).prediction() is None
    assert probed(critical_batch=34.0, threshold=0.4).prediction() is not None  # on the way to it
    nothing = probed(reason="a <= 0")
    assert nothing.prediction() is None
    assert nothing.summary() == " Probes at b = 256 predict no b*: a <= 0."
    (run_directory(nothing.cfg) / FILE).write_text(json.dumps({"no": "record"}))
    assert (nothing.prediction(), nothing.summary(), nothing.gradients()) == (None, "", 0)


def test_what_is_predicted_is_where_the_search_goes_on(tmp_path):
    def config_of(job):
        return compose([*TINY, *job, f"output_dir={tmp_path}"])

    job = ("stop.loss=0.5",)
    settings = SearchSettings(smallest=4, largest=1024, probes=2)
    (found,) = combinations({job: config_of(job)}, settings, config_of)
    (first,) = found.propose(4)
    assert found.configs[first].noise.probes == 2
    assert sum(each.noise.probes for each in found.configs.values()) == 2
    record = NoiseRecord("", "adam", "adam", 1e-3, 256, 0, 0.5, "epoch", [], critical_batch=200.0)
    directory = run_directory(found.configs[first])
    directory.mkdir(parents=True)
    (directory / FILE).write_text(record.to_json())
    found.look()
    assert found.search.predicted.critical_batch == 200
    found.has_failed(first)  # then the search proposes by itself
    assert found.propose(1) == [(256, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["hydra.sweeper.probes=-1"], "hydra.sweeper.probes=-1: must be a whole number >= 0"),
        (["hydra.sweeper.probes=some"], "must be a whole number >= 0"),
        (["hydra.sweeper.probes=2", "lr_scaling=tuned"], "not with lr_scaling=tuned"),
    ],
)
def test_mistakes_are_told_in_a_line(cli, settings, message, tmp_path):
    done = cli(*SEARCH, *settings, f"output_dir={tmp_path}")
    assert done.code == 1 and message in done.err and done.err.count("\n") == 1
