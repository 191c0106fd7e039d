"""What is written and removed is what this project means to, and where."""

import os
import signal
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs_lightning.files import (
    LinkError,
    file_name,
    file_names,
    inside,
    remove_scratch,
    scratch_of,
    write_atomically,
)
from cbs_lightning.reporting.figures.write import _remove_others, listed
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.results import store
from tests.hostile import NAMES, snapshot
from tests.properties import ANY_TEXT, EXAMPLES, examples
from tests.studies import make_run

ROOT = Path(__file__).parents[1]


def test_inside_refuses_links_and_ways_out(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "dangling").symlink_to("nowhere")
    assert inside(tmp_path, "real", "new") == tmp_path / "real" / "new"
    assert inside(tmp_path / "link", "new") == tmp_path / "link" / "new"  # the user's own
    for names in (("link",), ("link", "new"), ("real", "dangling")):
        with pytest.raises(LinkError, match="a symbolic link"):
            inside(tmp_path, *names)
    for name in ("", ".", "..", "a/b", "/"):
        with pytest.raises(ValueError, match="not the name of a file"):
            inside(tmp_path, name)


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    precious, path = tmp_path / "precious", tmp_path / "study" / "summary.csv"
    precious.write_text("precious")
    path.parent.mkdir()
    for link in (path, scratch_of(path)):
        link.symlink_to(precious)
    before = snapshot(precious)
    write_atomically(path, b"new")
    assert path.read_text() == "new" and not path.is_symlink()
    assert snapshot(precious) == before
    assert list(path.parent.iterdir()) == [path]


ORDINARY = ["adam", "momentum_ema lr=0.01", "adam betas=0.9,0.5 lr_scaling=linear", "sgd résumé"]


@pytest.mark.parametrize("variant", ORDINARY)
def test_run_directories_are_called_as_they_always_were(variant):
    called = variant.replace(" ", ",")
    path = store.run_directory(Path("outputs"), "digits", variant, 8, 0, "0123456789abcdef")
    assert path == Path(f"outputs/digits/{called}-b8-seed0-01234567")
    longer = "adam " + "x" * 200
    path = store.run_directory(Path("outputs"), "digits", longer, 8, 0, "0123456789abcdef")
    assert path.name == f"adam,{'x' * 200}-b8-seed0-01234567"
    path = store.run_directory(Path("outputs"), "digits", longer * 2, 8, 0, "0123456789abcdef")
    assert len(path.name) == 255 and path.name.endswith("-b8-seed0-01234567")


@EXAMPLES
def test_file_names_are_safe_and_distinct(number):
    alike = st.sampled_from([*NAMES, *ORDINARY, "A", "a", "\u00c5", "A\u030a", "\u212b"])

    @examples(number)
    @given(st.lists(ANY_TEXT | alike))
    def check(texts):
        names = file_names(texts)
        assert set(names) == set(texts)
        folded = {unicodedata.normalize("NFKC", name).casefold() for name in names.values()}
        assert len(folded) == len(names)
        for name in names.values():
            assert Path("folder", name).parent == Path("folder") and Path(name).name == name
            assert not name.startswith(".") and 0 < len(os.fsencode(name)) <= 80
            assert name.isprintable()

    check()


@EXAMPLES
def test_a_file_name_stays_as_it_is(number):
    @examples(number)
    @given(ANY_TEXT)
    def check(text):
        assert file_name(file_name(text)) == file_name(text)

    check()


@EXAMPLES
def test_a_list_of_figures_names_only_figures(number, tmp_path):
    manifest = tmp_path / ".written"
    typical = st.sampled_from(
        ["sfo.png", "../a.png", "/a.pdf", ".a.png", "a/b.png", "..", "a\0.png"]
    )

    @examples(number)
    @given(st.lists(ANY_TEXT | typical) | st.binary())
    def check(content):
        if not isinstance(content, bytes):
            content = "\n".join(content).encode(errors="surrogatepass")
        manifest.write_bytes(content)
        for name in listed(manifest):
            assert name.encode() in content.split(b"\n")
            assert Path(name).name == name and Path(name).suffix in (".png", ".pdf")
            assert not name.startswith(".") and name.isprintable()

    check()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "binary", "missing"])
def test_a_list_that_cannot_be_read_is_an_empty_one(tmp_path, kind):
    manifest = tmp_path / ".written"
    (tmp_path / "list").write_text("sfo.png\n")
    if kind == "link":
        manifest.symlink_to("list")
    elif kind == "pipe":
        os.mkfifo(manifest)
    elif kind == "directory":
        manifest.mkdir()
    elif kind == "binary":
        manifest.write_bytes(b"sfo.png\n\xff\n")
    assert listed(manifest) == set()


def test_only_figures_of_the_list_are_removed(tmp_path):
    figures = tmp_path / "figures"
    (figures / "directory.png").mkdir(parents=True)
    for path in (tmp_path / "a.png", figures / "old.png", figures / "kept.png", figures / "mine"):
        path.write_text("content")
    (figures / "link.png").symlink_to(tmp_path / "a.png")
    names = [str(tmp_path / "a.png"), "../a.png", "old.png", "link.png", "directory.png", "mine"]
    (figures / ".written").write_text("\n".join(names))
    _remove_others(figures / ".written", [figures / "new.png"])
    left = {".written", "directory.png", "kept.png", "link.png", "mine"}
    assert {path.name for path in figures.iterdir()} == left
    assert (tmp_path / "a.png").exists()
    assert (figures / ".written").read_text() == "new.png\n"


def test_only_scratch_files_are_removed(tmp_path):
    host = socket.gethostname()
    ours = [f".sfo.png.{host}.12.tmp", ".a b.json.other-host.example.org.9.tmp"]
    others = [".x.tmp", "a.tmp", f"sfo.png.{host}.12.tmp", ".x.12.tmp", ".vimrc.swp"]
    for name in (*ours, *others):
        (tmp_path / name).touch()
    (tmp_path / f".d.{host}.1.tmp").mkdir()
    remove_scratch(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, f".d.{host}.1.tmp"}
    remove_scratch(tmp_path / "nowhere")


DIES = """
import os, signal, sys
from pathlib import Path
from cbs_lightning import files
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"half")
"""


def test_what_killed_processes_left_is_removed_by_the_next_call(tmp_path, monkeypatch):
    study = tmp_path / "study"
    make_run(study, "adam", 8, 2)
    places = ("figures/sfo.png", "tables/time_and_accuracy.csv", "summary.csv", "_sweep/adam/x")
    for name in places:
        (study / name).parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([sys.executable, "-c", DIES, study / name], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
    assert len(list(study.rglob("*.tmp"))) == len(places)
    monkeypatch.setattr("cbs_lightning.reporting.figures.write.figures_of", lambda _: ())
    write_study(study)
    assert list(study.rglob("*.tmp")) == []
