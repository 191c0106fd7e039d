"""`import cbs_lightning`: what it exports, without torch, each with an example that runs."""

import doctest
import importlib

import pytest

import cbs_lightning
from tests.test_start import loaded_by

NAMES = sorted(set(cbs_lightning.__all__) - {"__version__"})
ASKED_FOR = {
    "Status", "Result", "Request", "Run", "read_study", "recommend", "Curve", "curves", "compare",
    "Search", "Trial", "compose", "run", "AdamMonotone", "MomentumEMA", "__version__",
}  # fmt: skip


def test_it_exports_the_public_names():
    assert set(cbs_lightning.__all__) >= ASKED_FOR and set(NAMES) <= set(dir(cbs_lightning))


def test_importing_it_imports_no_framework():
    code = "import cbs_lightning; cbs_lightning.Result, cbs_lightning.Search, cbs_lightning.compose"
    loaded = loaded_by(code)
    assert loaded.isdisjoint({"torch", "lightning", "torchvision", "matplotlib"})


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = getattr(cbs_lightning, name)
    examples = doctest.DocTestFinder(recurse=False).find(thing, name)
    assert sum(len(each.examples) for each in examples) > 0
    for example in examples:
        failed, _ = doctest.DocTestRunner().run(example)
        assert not failed


@pytest.mark.parametrize(
    "name",
    [
        "fit.curve_fit", "fit.comparison", "theory.theorem", "optim.groups", "optim.adabelief",
        "optim.adafactor", "optim.lion", "optim.muon", "optim.schedule_free", "optim.signum",
        "optim.yogi",
    ],
)  # fmt: skip
def test_examples_of_fits_theory_and_optimizers_run(name):
    failed, tried = doctest.testmod(importlib.import_module(f"cbs_lightning.{name}"))
    assert tried > 0 and not failed
