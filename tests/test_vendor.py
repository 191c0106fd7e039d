"""What others wrote and this project carries or installs is exactly what was looked at."""

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "cbs_lightning" / "reporting" / "report" / "vendor"
PACKAGES = json.loads((VENDOR / "versions.json").read_text())
OWN = {"README.md", "versions.json"}


def test_every_vendored_file_is_recorded():
    recorded = [name for package in PACKAGES for name in package["files"]]
    assert sorted(recorded) == sorted({path.name for path in VENDOR.iterdir()} - OWN)


@pytest.mark.parametrize("package", PACKAGES, ids=[package["name"] for package in PACKAGES])
def test_vendored_files_are_as_recorded(package):
    for name, file in package["files"].items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == file["sha256"], name
    code, licence = ((VENDOR / name).read_text() for name in package["files"])
    assert f"v{package['version']} " in code.partition("\n")[0]
    assert package["licence"] == "ISC" and "Permission to use, copy, modify" in licence


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-build.lock", "requirements-docs.lock"]
)
def test_every_package_is_pinned_with_its_hashes(lock):
    entries = re.split(r"^(?=[a-z])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[\w.-]+==\S+ ", entry) and "--hash=sha256:" in entry, entry


def test_nothing_is_installed_or_built_without_hashes():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    tools, packages, docs = re.findall(r"pip install (.*)", makefile)
    assert "--require-hashes" in docs and "-r requirements-docs.lock" in docs
    assert "--only-binary :all:" in docs
    assert "--require-hashes" in tools and "-r requirements-build.lock" in tools
    assert "--only-binary :all:" in tools  # since it would be built by what is not pinned yet
    assert "--require-hashes" in packages and "-r requirements.lock" in packages
    assert "--no-build-isolation" in packages  # else pip fetches what builds without a hash
    pinned = [
        (ROOT / name).read_text() for name in ("requirements.lock", "requirements-build.lock")
    ]
    one, other = (re.search(r"^setuptools==(\S+)", text, re.MULTILINE)[1] for text in pinned)
    assert one == other
