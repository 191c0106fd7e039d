import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from cbs_lightning.data import CIFAR10, MNIST, Digits, Images, InMemoryLoader, Split, cifar10, mnist
from cbs_lightning.data.augment import Augmentation
from cbs_lightning.data.files import InsecureError, https_only
from cbs_lightning.data.loader import SAMPLES_PER_CHUNK, Normalization
from cbs_lightning.errors import DataError


def numbered(count: int) -> Images:
    """Image i is filled with i, its label is i."""
    labels = torch.arange(count)
    pixels = labels.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 2, 1).contiguous()
    return Images(pixels, labels)


def batches(loader: InMemoryLoader, epoch: int = 0) -> list[list[int]]:
    loader.epoch = epoch
    return [labels.tolist() for chunk in loader for _, labels in chunk]


def flat(lists: list[list[int]]) -> list[int]:
    return [item for items in lists for item in items]


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4, 4, 2]), (10, [10]), (64, [10])])
def test_an_epoch_is_a_permutation_in_batches(batch_size, sizes):
    loader = InMemoryLoader(numbered(10), batch_size, seed=0)
    found = batches(loader)
    assert [len(batch) for batch in found] == sizes
    assert sorted(flat(found)) == list(range(10))
    assert loader.steps_per_epoch == len(sizes)
    assert loader.batch_size == min(batch_size, 10)


def test_order_depends_on_seed_and_epoch_alone():
    loader = InMemoryLoader(numbered(100), 7, seed=3)
    first, second = batches(loader, 0), batches(loader, 1)
    assert first != second
    assert batches(InMemoryLoader(numbered(100), 7, seed=3), 1) == second
    assert batches(InMemoryLoader(numbered(100), 7, seed=4), 0) != first
    # The batch size cuts the same permutation.
    assert flat(batches(InMemoryLoader(numbered(100), 50, seed=3), 1)) == flat(second)


def test_chunks_hold_many_small_batches_or_one_large():
    loader = InMemoryLoader(numbered(200), 4, seed=0)
    assert loader.batches_per_chunk == SAMPLES_PER_CHUNK // 4
    images = numbered(250)
    images = Images(images.pixels.repeat(8, 1, 1, 1), images.labels.repeat(8))
    assert [len(chunk) for chunk in InMemoryLoader(images, 4, seed=0)] == [128, 128, 128, 116]
    assert len(InMemoryLoader(images, 4, seed=0)) == 4
    assert [len(chunk) for chunk in InMemoryLoader(images, 1024, seed=0)] == [1, 1]


def test_resuming_inside_an_epoch():
    images = numbered(250)
    images = Images(images.pixels.repeat(8, 1, 1, 1), images.labels.repeat(8))
    loader = InMemoryLoader(images, 4, seed=0)
    loader.epoch = 5
    whole = [[labels.tolist() for _, labels in chunk] for chunk in loader]
    loader.epoch = 5
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    resumed = InMemoryLoader(images, 4, seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert [[labels.tolist() for _, labels in chunk] for chunk in resumed] == whole[2:]
    assert len(list(resumed)) == 4  # the epoch after that is whole again


def test_with_replacement_every_batch_is_full_and_drawn_independently():
    loader = InMemoryLoader(numbered(100), 30, seed=0, replacement=True)
    found = batches(loader)
    assert [len(batch) for batch in found] == [30, 30, 30, 30]
    assert len(set(flat(found))) < 100
    epochs = [flat(batches(loader, epoch)) for epoch in range(300)]
    draws = np.bincount(flat(epochs), minlength=100)
    # 36,000 draws of 100 images: 360 each, standard deviation 19
    assert draws.min() > 280 and draws.max() < 440


def test_images_are_scaled_to_one_and_channels_last():
    pixels = torch.tensor([0, 16], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 4, 4, 3)
    loader = InMemoryLoader(Images(pixels.contiguous(), torch.arange(2), scale=16), 2)
    images, _ = next(iter(loader))[0]
    assert images.shape == (2, 3, 4, 4) and images.dtype == torch.float32
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert (images[0] == 0).all() and (images[1] == 1).all()


def test_normalization():
    pixels = torch.full((1, 2, 2, 2), 255, dtype=torch.uint8)
    loader = InMemoryLoader(
        Images(pixels, torch.zeros(1, dtype=torch.long)),
        1,
        normalization=Normalization((0.5, 0.0), (0.25, 2.0)),
    )
    images, _ = next(iter(loader))[0]
    assert (images[0, 0] == 2.0).all() and (images[0, 1] == 0.5).all()


def test_augmentation_crops_and_mirrors():
    pixels = torch.arange(1, 17, dtype=torch.uint8).view(1, 4, 4, 1).repeat(500, 1, 1, 1)
    rng = torch.Generator().manual_seed(0)
    augmentation = Augmentation(padding=1, flip=True)
    out = augmentation.apply(pixels, augmentation.draw(500, rng))
    assert out.shape == pixels.shape
    padded = torch.nn.functional.pad(pixels[0, :, :, 0], (1, 1, 1, 1))
    windows = [padded[y : y + 4, x : x + 4] for y in range(3) for x in range(3)]
    windows += [window.flip(1) for window in windows]
    seen = set()
    for image in out[:, :, :, 0]:
        matches = [i for i, window in enumerate(windows) if torch.equal(image, window)]
        assert matches
        seen.update(matches)
    assert seen == set(range(18))


def test_augmentation_is_reproducible_and_changes_with_the_epoch():
    images = Images(torch.randint(255, (20, 8, 8, 1), dtype=torch.uint8), torch.arange(20))

    def epoch(number: int) -> torch.Tensor:
        loader = InMemoryLoader(images, 20, seed=1, augmentation=Augmentation(2, flip=False))
        loader.epoch = number
        batch, labels = next(iter(loader))[0]
        return batch[labels.argsort()]

    assert torch.equal(epoch(0), epoch(0))
    assert not torch.equal(epoch(0), epoch(1))


@pytest.mark.parametrize(
    ("pixels", "labels", "problem"),
    [
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.zeros(4).long(), "N x H x W x 1"),
        (torch.zeros(4, 8, 8, 1), torch.zeros(4).long(), "uint8"),
        (torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.zeros(4), "int64"),
        (torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.zeros(3).long(), "one a sample"),
        (torch.zeros(4, 8, 8, 1, dtype=torch.uint8), torch.full((4,), 10), "0 to 9"),
    ],
)
def test_a_new_data_set_is_checked(pixels, labels, problem):
    class New(Digits):
        @classmethod
        def load(cls, data_dir: Path) -> Split:
            return Split(Images(pixels, labels), None)

    with pytest.raises(DataError, match=f"New: .*{problem}"):
        New("data", 4, 0).setup("fit")


def test_digits():
    train, test = Digits.load(Path())
    assert test is None
    assert train.pixels.shape == (1797, 8, 8, 1) and train.pixels.dtype == torch.uint8
    assert train.scale == train.pixels.max() == 16
    assert train.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


# --- The real data sets


def test_mnist(real_data):
    MNIST.prepare(real_data)
    train, test = MNIST.load(real_data)
    assert train.pixels.shape == (60_000, 28, 28, 1) and test.pixels.shape == (10_000, 28, 28, 1)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert train.pixels.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)


def test_cifar10_in_binary_form(real_data):
    CIFAR10.prepare(real_data)
    train, test = CIFAR10.load(real_data)
    assert train.pixels.shape == (50_000, 32, 32, 3) and test.pixels.shape == (10_000, 32, 32, 3)
    assert train.labels.bincount().tolist() == [5000] * 10
    means = train.pixels.float().mean((0, 1, 2)) / 255
    torch.testing.assert_close(means, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)
    # The first image is a frog whose top left pixel is (59, 62, 63).
    assert train.labels[0] == 6 and train.pixels[0, 0, 0].tolist() == [59, 62, 63]


def test_cifar10_in_python_form(real_data, tmp_path):
    """Both forms give the same images."""
    import pickle

    folder = tmp_path / cifar10.PYTHON_FOLDER
    folder.mkdir()
    for name in (*cifar10.BINARY_TRAIN_FILES, *cifar10.BINARY_TEST_FILES):
        records = np.fromfile(real_data / cifar10.BINARY_FOLDER / name, np.uint8).reshape(-1, 3073)
        entry = {"data": records[:, 1:], "labels": records[:, 0].tolist()}
        (folder / name.removesuffix(".bin")).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    python, binary = CIFAR10.load(tmp_path), CIFAR10.load(real_data)
    for ours, theirs in zip(binary, python, strict=True):
        assert torch.equal(ours.pixels, theirs.pixels)
        assert torch.equal(ours.labels, theirs.labels)


@pytest.fixture
def mnist_copy(real_data, tmp_path) -> Path:
    shutil.copytree(real_data / mnist.FOLDER, tmp_path / mnist.FOLDER, copy_function=shutil.copy)
    for path in (tmp_path / mnist.FOLDER).iterdir():
        path.chmod(0o644)
    return tmp_path


@pytest.mark.parametrize("damage", ["truncated", "wrong", "missing", "folder"])
def test_damaged_files_are_named(mnist_copy, damage):
    path = mnist_copy / mnist.FOLDER / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "wrong":
        content[1000] ^= 1
        path.write_bytes(content)
    elif damage == "folder":
        path.mkdir()
    reason = {
        "truncated": "10007 bytes, should be 10008",
        "wrong": "wrong checksum",
        "missing": "t10k-labels-idx1-ubyte: missing",
        "folder": "bytes, should be",
    }[damage]
    with pytest.raises(DataError, match=reason) as error:
        MNIST.prepare(mnist_copy)
    message = str(error.value)
    assert message.startswith(f"data_dir={mnist_copy}: ") and path.name in message
    assert f"delete {mnist_copy / mnist.FOLDER}" in message and "\n" not in message


# --- Downloads


@pytest.mark.parametrize(
    ("data", "folder"), [(MNIST, "MNIST/raw"), (CIFAR10, "cifar-10-batches-bin")]
)
def test_without_network_the_error_says_what_to_put_where(data, folder, tmp_path, monkeypatch):
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no\nnetwork")

    monkeypatch.setattr("urllib.request.HTTPSHandler.https_open", no_network)
    with pytest.raises(DataError) as error:
        data.prepare(tmp_path / "data")
    message = str(error.value)
    assert str(tmp_path / "data") in message and folder in message and "no network" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    def breaks_off(self: object, root: Path, **_: object) -> None:
        (root / "MNIST" / "raw").mkdir(parents=True)
        (root / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"half")
        raise RuntimeError("connection lost")

    monkeypatch.setattr(datasets.MNIST, "__init__", breaks_off)
    with pytest.raises(DataError, match="connection lost"):
        MNIST.prepare(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_half_made_folder_is_filled(real_data, tmp_path, monkeypatch):
    def downloads(self: object, root: Path, **_: object) -> None:
        shutil.copytree(real_data / "MNIST", root / "MNIST")

    monkeypatch.setattr(datasets.MNIST, "__init__", downloads)
    (tmp_path / "MNIST").mkdir()
    MNIST.prepare(tmp_path)
    assert [path.name for path in (tmp_path / "MNIST").iterdir()] == ["raw"]


@pytest.mark.parametrize("data", [MNIST, CIFAR10])
def test_a_folder_that_cannot_be_read(data, tmp_path, monkeypatch):
    def exists(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(DataError, match=f"data_dir={tmp_path}: Permission denied"):
        data.prepare(tmp_path)


def test_a_download_is_moved_into_place_and_checked(real_data, tmp_path, monkeypatch):
    def downloads(self: object, root: Path, **_: object) -> None:
        shutil.copytree(real_data / "MNIST", root / "MNIST")

    monkeypatch.setattr(datasets.MNIST, "__init__", downloads)
    MNIST.prepare(tmp_path / "data")
    assert {path.name for path in (tmp_path / "data" / mnist.FOLDER).iterdir()} == set(mnist.FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    "url", ["http://example.com/x", "ftp://example.com/x", "file:///etc/hosts"]
)
def test_only_https_is_fetched_from(url):
    import urllib.request

    with https_only(), pytest.raises(InsecureError, match="is not https"):
        urllib.request.urlopen(url)


@pytest.mark.parametrize("data", [MNIST, CIFAR10])
def test_a_failed_https_download_is_not_tried_again_over_http(data, tmp_path, monkeypatch):
    asked = []

    def refused(self, request):
        asked.append(request.full_url)
        raise OSError("refused")

    monkeypatch.setattr("urllib.request.HTTPSHandler.https_open", refused)
    monkeypatch.setattr("urllib.request.HTTPHandler.http_open", refused)
    with pytest.raises(DataError, match="refused"):
        data.prepare(tmp_path / "data")
    assert asked and all(url.startswith("https://") for url in asked)


def test_a_redirection_to_http_is_not_followed(monkeypatch):
    import email
    import io
    import urllib.request
    from urllib.response import addinfourl

    def redirects(self, request):
        headers = email.message_from_string("Location: http://example.com/evil")
        response = addinfourl(io.BytesIO(), headers, request.full_url, 302)
        response.msg = "Found"
        return response

    monkeypatch.setattr("urllib.request.HTTPSHandler.https_open", redirects)
    with https_only(), pytest.raises(InsecureError, match=r"http://example\.com/evil"):
        urllib.request.urlopen("https://example.com/data")


def test_arrays_pickled_as_in_2009_are_read():
    import pickle
    from io import BytesIO

    data = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = pickle.dumps({"data": data, "labels": [1, 2]}, protocol=2)
    old = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != content
    entry = cifar10.ArraysOnly(BytesIO(old), encoding="latin1").load()
    assert np.array_equal(entry["data"], data) and entry["labels"] == [1, 2]


class Evil:
    def __reduce__(self):
        return print, ("evil code ran",)


def test_a_pickle_that_calls_anything_is_refused(tmp_path, capsys):
    import pickle

    folder = tmp_path / cifar10.PYTHON_FOLDER
    folder.mkdir()
    for name, _ in (*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list):
        (folder / name).write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(pickle.UnpicklingError, match=r"print is not allowed"):
        CIFAR10.load(tmp_path)
    assert "evil" not in capsys.readouterr().out
    with pytest.raises(DataError, match="wrong checksum"):
        CIFAR10.prepare(tmp_path)
