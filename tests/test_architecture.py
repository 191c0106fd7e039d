"""What docs/architecture.md says of the packages holds."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cbs_lightning"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([program], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path):
    for path in [*MODULES, *PACKAGE.rglob("*.pyi"), ROOT / "pyproject.toml"]:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("training/run.py", "cbs_lightning.sweep.job"),
        ("fit/forms.py", "cbs_lightning.analysis.curves"),
        ("reporting/tables.py", "cbs_lightning.training.resources.threads"),
        ("errors.py", "cbs_lightning.data"),
    ],
)
def test_an_import_against_the_order_is_refused(copied, module, imported):
    path = copied / "cbs_lightning" / module
    path.write_text(f"{path.read_text()}\nimport {imported}\n")
    done = lint_imports(copied)
    assert done.returncode != 0 and "BROKEN" in done.stdout, done.stdout + done.stderr


def test_the_imports_follow_the_order():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_packages_and_files_stay_small():
    inside = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert inside.pop(PACKAGE) <= 8
    assert max(inside.values()) <= 16
    for path in MODULES:
        text = path.read_text()
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_training_knows_nothing_of_sweeps():
    for path in (PACKAGE / "training").glob("*.py"):
        assert "cfg.sweep" not in path.read_text(), path


def test_every_place_that_the_page_names_is_there():
    named = re.findall(r"`((?:cbs_lightning|conf|tests|hydra_plugins|benchmarks)/[\w./<>]*)`", PAGE)
    assert len(named) > 20
    for name in named:
        assert (ROOT / name).exists() or "<" in name, name


def test_every_package_is_on_the_page():
    for path in PACKAGE.iterdir():
        if (path / "__init__.py").exists():
            assert f"`{path.name}`" in PAGE, path.name
