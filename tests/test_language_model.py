"""The language model and its texts, which are written as anybody would write them."""

import hashlib
import os
import re
import signal
import sysconfig
import urllib.request
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from cbs_lightning.config import datamodule
from cbs_lightning.config.composition import compose
from cbs_lightning.config.identity import config_hash
from cbs_lightning.data import Digits, Shakespeare, StandardLibrary, TextDataModule, text
from cbs_lightning.errors import ConfigError, DataError
from cbs_lightning.models import ByteGPT
from cbs_lightning.results.store import read_result
from tests.forks import ran
from tests.test_restart import assert_same_runs
from tests.test_sweep import jobs, settings_of

SIZES = {"width": 16, "layers": 2, "heads": 2, "context": 12, "lr": 1e-2}
PLAY = b"To be, or not to be, that is the question.\n" * 20


class Play(TextDataModule):
    def text(self):
        return PLAY


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ByteGPT(**SIZES)


@pytest.fixture
def original(monkeypatch):
    """The play stands for tinyshakespeare."""
    monkeypatch.setattr(text, "SHAKESPEARE_SHA256", hashlib.sha256(PLAY).hexdigest())


def put(data_dir, content):
    path = data_dir / text.SHAKESPEARE
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def epochs(data, count=2):
    data.setup("fit")
    loader = data.train_dataloader()
    return [[batch[0].tolist() for batch in loader] for _ in range(count)]


def test_the_model_predicts_the_next_byte_at_every_place(model):
    tokens = torch.randint(256, (3, 12))
    assert model(tokens).shape == (3, 12, 256)
    assert model(tokens[:, :5]).shape == (3, 5, 256)
    following = torch.randint(256, (3, 12))
    by_hand = torch.stack(
        [
            cross_entropy(model(tokens)[sample, place], following[sample, place])
            for sample in range(3)
            for place in range(12)
        ]
    ).mean()
    torch.testing.assert_close(model.training_step((tokens, following), 0), by_hand)


def test_a_prediction_depends_on_what_came_before_and_not_on_what_follows(model):
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = model(tokens)[0], model(changed)[0]
    torch.testing.assert_close(before[:7], after[:7])
    assert (before[7:] != after[7:]).any(1).all()
    # The place of a byte counts: a byte after itself is not always predicted alike.
    same = model(torch.full((1, 12), 65))[0]
    assert not torch.allclose(same[3], same[4])


def test_a_sample_does_not_depend_on_its_batch(model):
    tokens = torch.randint(256, (4, 12))
    torch.testing.assert_close(model(tokens)[2:3], model(tokens[2:3]))


def test_the_model_starts_at_the_loss_of_a_guess_and_learns(model):
    data = Play(batch_size=16, seed=0, length=12)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    optimizer = model.configure_optimizers()
    losses = []
    for _ in range(60):
        loss = model.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # log 256
    counts = torch.tensor(list(PLAY)).bincount().double()
    frequencies = counts[counts > 0] / len(PLAY)
    assert losses[-1] < -(frequencies * frequencies.log()).sum() / 2  # without the bytes before
    assert isinstance(optimizer, torch.optim.AdamW)


def test_sizes_that_do_not_fit(model):
    with pytest.raises(ValueError, match="width=10: must be a multiple of heads=4"):
        ByteGPT(width=10, heads=4)
    with pytest.raises(ValueError, match=r"13 bytes; model\.context is 12"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="length=0: must be at least 1"):
        Play(batch_size=4, seed=0, length=0)


def test_sequences_are_the_text():
    sequences = text.Sequences(b"abcdefghij", 3)
    assert len(sequences) == 3
    found = [(bytes(tokens.tolist()), bytes(next_.tolist())) for tokens, next_ in sequences]
    assert found == [(b"abc", b"bcd"), (b"def", b"efg"), (b"ghi", b"hij")]
    assert len(text.Sequences(b"abcdefghi", 3)) == 2  # the last byte would have none after it


def test_the_order_depends_on_the_seed_and_the_epoch_alone():
    first = epochs(Play(batch_size=7, seed=3, length=10))
    torch.rand(5)  # whatever else is drawn meanwhile
    assert epochs(Play(batch_size=7, seed=3, length=10)) == first
    assert first[0] != first[1]
    assert epochs(Play(batch_size=7, seed=4, length=10))[0] != first[0]
    # The batch size cuts the same order.
    whole = epochs(Play(batch_size=1000, seed=3, length=10))
    for epoch in range(2):
        assert [sample for batch in first[epoch] for sample in batch] == whole[epoch][0]
    data = Play(batch_size=7, seed=3, length=10)
    assert (data.tokens_per_sample, data.batch_size) == (10, 7)


def test_the_standard_library_is_found_without_a_download():
    data = StandardLibrary(batch_size=8, seed=0)
    source = Path(sysconfig.get_paths()["stdlib"])
    assert (source / "argparse.py").read_bytes() in data.text()
    assert (source / "json" / "decoder.py").read_bytes() in data.text()
    assert Path(torch.__file__).read_bytes() not in data.text()
    data.setup("fit")
    tokens, following = next(iter(data.train_dataloader()))
    assert tokens.shape == following.shape == (8, 32)
    assert data.fingerprint == hashlib.sha256(data.text()).hexdigest()


def library(folder, **files):
    """A folder like Python's, with these sources and what does not belong."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name in ("site-packages/torch.py", "test/support.py", "json/tests/all.py", "json/data.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not of the library")
    return folder


def test_another_library_has_another_fingerprint(tmp_path, monkeypatch):
    def fingerprint(folder):
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(folder)})
        data = StandardLibrary(batch_size=8, seed=0)
        return data.fingerprint, data.text()

    one = fingerprint(library(tmp_path / "1", ast="a", json__decoder="b", zipfile="c"))
    assert one[1] == b"abc"
    assert fingerprint(library(tmp_path / "2", zipfile="c", json__decoder="b", ast="a")) == one
    other = fingerprint(library(tmp_path / "3", ast="a", json__decoder="B", zipfile="c"))
    assert other[0] != one[0]


def test_a_python_without_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataError, match="data=stdlib: this Python has no source") as raised:
        StandardLibrary(batch_size=8, seed=0).setup("fit")
    assert "\n" not in str(raised.value)


def test_shakespeare_is_found_where_it_is(tmp_path, original, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlretrieve", None)  # nothing is fetched
    put(tmp_path, PLAY)
    data = Shakespeare(batch_size=2, seed=0, data_dir=str(tmp_path))
    data.prepare_data()
    assert data.text() == PLAY


@pytest.mark.parametrize("left", [None, "empty folder"])
def test_shakespeare_is_downloaded_once(left, tmp_path, original, monkeypatch):
    asked = []

    def urlretrieve(url, target):
        asked.append(url)
        Path(target).write_bytes(PLAY)

    monkeypatch.setattr(urllib.request, "urlretrieve", urlretrieve)
    data = Shakespeare(batch_size=2, seed=0, data_dir=str(tmp_path / "data"))
    if left:
        (tmp_path / "data" / "tinyshakespeare").mkdir(parents=True)
    data.prepare_data()
    data.prepare_data()
    assert asked == [text.SHAKESPEARE_URL] and asked[0].startswith("https://")
    assert data.text() == PLAY
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["tinyshakespeare"]


def no_network(url, target):
    raise OSError("no network")


def half_of_it(url, target):
    Path(target).write_bytes(PLAY[:100])


@pytest.mark.parametrize(
    ("urlretrieve", "reason"), [(no_network, "no network"), (half_of_it, "wrong checksum")]
)
def test_a_download_that_fails_leaves_nothing(urlretrieve, reason, tmp_path, original, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlretrieve", urlretrieve)
    data = Shakespeare(batch_size=2, seed=0, data_dir=str(tmp_path))
    with pytest.raises(DataError) as raised:
        data.prepare_data()
    said = str(raised.value)
    assert reason in said and "a folder that holds tinyshakespeare/input.txt" in said
    assert "\n" not in said and not list(tmp_path.iterdir())


def test_a_damaged_or_missing_shakespeare(tmp_path, original):
    path = put(tmp_path, PLAY[:-1])
    data = Shakespeare(batch_size=2, seed=0, data_dir=str(tmp_path))
    data.prepare_data()
    with pytest.raises(DataError, match=r"input\.txt: not the original file.*; delete .* to down"):
        data.setup("fit")
    path.unlink()
    with pytest.raises(DataError, match=r"input\.txt: No such file"):
        data.setup("fit")


def test_shakespeare_itself():
    data_dir = os.environ.get("CBS_DATA_DIR", "data")
    if not (Path(data_dir) / text.SHAKESPEARE).exists():
        pytest.skip(f"{data_dir}/{text.SHAKESPEARE} is not there")
    data = Shakespeare(batch_size=2, seed=0, data_dir=data_dir)
    assert data.text().startswith(b"First Citizen:\n")
    assert len(data.text()) == 1_115_394


RUN = [
    "experiment=gpt_bytes", "model.width=8", "model.layers=1", "batch_size=16", "threads=1",
    "jobs=1", "report=false",
]  # fmt: skip


def test_the_experiment_has_three_optimizers_and_eight_batch_sizes():
    assert sorted(jobs("experiment=gpt_bytes")) == sorted(
        (name, 2**i) for name in ("adamw", "momentum", "sgd") for i in range(2, 10)
    )


def test_the_sweeps_of_the_page_are_what_it_says():
    page = (Path(__file__).parents[1] / "docs" / "language_model.md").read_text()
    commands = re.findall(r"^python train.py -m (experiment=.*)$", page, re.MULTILINE)
    assert [len(settings_of(*command.split())) for command in commands] == [72, 24, 72, 24]


def test_the_command_line_trains_it(cli, tmp_path):
    run = [*RUN, "optimizer.lr=1e-2", "stop.loss=5", "stop.window=64", f"output_dir={tmp_path}"]
    outcome = cli(*run)
    assert outcome.code == 0 and "reached 5 after" in outcome.out, outcome.err
    (directory,) = (tmp_path / "gpt_bytes").iterdir()
    result = read_result(directory)
    assert (result.data, result.model, result.optimizer) == ("stdlib", "byte_gpt", "adamw")
    assert result.accuracy is None and result.data_size > 100_000
    assert "already finished" in cli(*run).out


def test_another_library_makes_another_run(cli, tmp_path, monkeypatch):
    run = [*RUN, "stop.max_steps=1", f"output_dir={tmp_path}"]
    hashes = set()
    for source in (PLAY, PLAY, PLAY[:-1]):
        monkeypatch.setattr(StandardLibrary, "text", lambda _, source=source: source)
        monkeypatch.setattr(datamodule, "_fingerprints", {})  # as in another process
        assert cli(*run).code == 0
        hashes.add(config_hash(compose(run)))
    found = {read_result(path).config_hash for path in (tmp_path / "gpt_bytes").iterdir()}
    assert found == hashes and len(hashes) == 2


def test_data_without_a_fingerprint_have_the_hash_they_always_had(monkeypatch):
    cfg = compose([])
    before = config_hash(cfg)
    monkeypatch.setattr(Digits, "fingerprint", "other digits", raising=False)
    monkeypatch.setattr(datamodule, "_fingerprints", {})
    assert config_hash(cfg) != before
    monkeypatch.setattr(Digits, "fingerprint", 7)
    monkeypatch.setattr(datamodule, "_fingerprints", {})
    with pytest.raises(ConfigError, match="data=digits: its fingerprint is 7; it must be a str"):
        config_hash(cfg)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            "model.heads=3",
            "error: model=byte_gpt: ValueError: width=8: must be a multiple of heads=3",
        ),
        ("data.length=0", "error: data=stdlib: ValueError: length=0: must be at least 1"),
        (
            "data=digits",
            "error: model.context: needs data.length; data=shakespeare, stdlib have data.length",
        ),
    ],
)
def test_a_mistake_is_one_line(cli, tmp_path, mistake, said):
    outcome = cli(*RUN, mistake, f"output_dir={tmp_path}")
    assert outcome.code == 1 and outcome.err.strip() == said


def test_killed_at_any_moment_it_ends_as_if_it_never_was(forks, tmp_path):
    run = [*RUN, "stop.loss=1e-9", "stop.max_steps=12", "checkpoint.every_seconds=1e-9"]
    run = [*run, "checkpoint.keep=true", "tensorboard.points=2"]
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    points = ran(forks, run, undisturbed).points
    for number in (len(points) // 3, len(points) // 2):
        ended = ran(forks, run, disturbed, kill_at=number)
        assert ended.code == -signal.SIGKILL
    ended = ran(forks, run, disturbed)
    assert ended.code == 0, ended.err
    assert_same_runs(undisturbed, disturbed)
