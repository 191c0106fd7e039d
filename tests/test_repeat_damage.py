"""Whatever happens to a stored configuration, it is never silently another one."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import initialize_config_dir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from cbs_lightning.config import agreement
from cbs_lightning.config.checks import check
from cbs_lightning.config.composition import CONF_DIR, complete, compose, compose_whole
from cbs_lightning.config.identity import canonical, run_directory
from cbs_lightning.config.repeat import OWN
from cbs_lightning.config.schema import RunConfig, recorded
from cbs_lightning.errors import UserError
from cbs_lightning.results.store import CONFIG
from cbs_lightning.training.run import run
from tests.conftest import TINY

PROPERTY = settings(
    derandomize=True, deadline=None, database=None, max_examples=100,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
MANY = settings(PROPERTY, max_examples=1000)
ODD = [
    None, True, False, 0, 1, -1, 2, 7, 64, 2**31, 2**63, 10**400, 0.0, 0.5, 1.0, -0.1, 1e-8, 1e308,
    float("nan"), float("inf"), "", "a", "auto", "none", "1", "null", "..", "a/b", "a\nb", "???",
    "${seed}", "\x1b[2J", "é" * 200, [], [1], [0.9, 0.99], ["a"], [[]], {}, {"a": 1}, {1: 2},
    {"_target_": "os.system"}, {"_target_": "torch.nn.ReLU"}, "torch.optim.Adam", "os.system",
    "torch.optim.LBFGS", "cbs_lightning.models.ResNet18", "adam", "sgd", "window", "sqrt",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


@dataclass(frozen=True)
class Stored:
    directory: Path
    text: bytes
    cfg: RunConfig

    @property
    def values(self) -> dict[str, Any]:
        return OmegaConf.to_container(OmegaConf.create(self.text.decode()))


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Stored:
    output_dir = tmp_path_factory.mktemp("outputs")
    given = ["optimizer.lr=0.002", "seed=3", "stop.max_steps=2", f"output_dir={output_dir}"]
    directory = run_directory(cfg := compose([*TINY, *given]))
    run(cfg)
    return Stored(directory, (directory / CONFIG).read_bytes(), repeated(directory))


@cache
def composed(directory: Path) -> DictConfig:
    return compose_whole([f"repeat='{directory}'", "trusted_packages=[tests]"])


def repeated(directory: Path) -> RunConfig:
    """As `compose` does it, but that Hydra composes once."""
    whole = composed(directory)
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        cfg = complete(whole, whole.hydra)
    check(cfg)
    return cfg


def said_of(cfg: RunConfig) -> str:
    return canonical({key: value for key, value in recorded(cfg).items() if key not in OWN})


def assert_same_or_told(stored: Stored, text: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """The same configuration, a line that refuses it, or a line that warns of it."""
    (stored.directory / CONFIG).write_bytes(text)
    agreement._warn.cache_clear()
    capsys.readouterr()
    try:
        cfg = repeated(stored.directory)
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) < 2000
        return
    out = capsys.readouterr().out
    if out:
        assert out.startswith("warning: ") and out.count("\n") == 1 and out[:-1].isprintable()
    else:
        assert said_of(cfg) == said_of(stored.cfg)


def test_what_is_not_changed_is_the_same(stored, capsys):
    assert_same_or_told(stored, stored.text, capsys)
    assert said_of(repeated(stored.directory)) == said_of(stored.cfg)


def flips(stored: Stored) -> st.SearchStrategy[bytes]:
    places = st.integers(0, len(stored.text) - 1)
    flip = st.tuples(places, st.integers(0, 255))
    return st.lists(flip, min_size=1, max_size=3).map(lambda found: flipped(stored.text, found))


def flipped(text: bytes, changes: list[tuple[int, int]]) -> bytes:
    content = bytearray(text)
    for place, byte in changes:
        content[place] = byte
    return bytes(content)


def truncations(stored: Stored) -> st.SearchStrategy[bytes]:
    """Also of a piece in the middle."""
    end = len(stored.text)
    piece = st.tuples(st.integers(0, end), st.integers(0, end))
    return st.one_of(
        st.integers(0, end).map(lambda length: stored.text[:length]),
        piece.map(lambda cut: stored.text[: min(cut)] + stored.text[max(cut) :]),
    )


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all groups and values."""
    if path:
        yield path
    if isinstance(values, dict):
        for key, inner in values.items():
            yield from leaves(inner, (*path, key))


def other_values(stored: Stored) -> st.SearchStrategy[bytes]:
    """Another value somewhere, of any type."""
    places = st.sampled_from(list(leaves(stored.values)))
    return st.tuples(places, VALUES).map(lambda change: with_value(stored, *change))


def with_value(stored: Stored, path: tuple[Any, ...], value: Any) -> bytes:
    values = stored.values
    group = values
    for key in path[:-1]:
        group = group[key]
    group[path[-1]] = value
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")


def other_keys(stored: Stored) -> st.SearchStrategy[bytes]:
    """A key that is gone, or has another name."""
    places = st.sampled_from(list(leaves(stored.values)))
    names = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["seed", "_args_", "names"]))
    return st.tuples(places, names).map(lambda change: with_key(stored, *change))


def with_key(stored: Stored, path: tuple[Any, ...], name: str | None) -> bytes:
    values = stored.values
    group = values
    for key in path[:-1]:
        group = group[key]
    value = group.pop(path[-1])
    if name is not None:
        group[name] = value
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).encode("utf-8", "replace")


DAMAGE = [flips, truncations, other_values, other_keys]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "examples", [PROPERTY, pytest.param(MANY, marks=pytest.mark.slow)], ids=["100", "1000"]
)
def test_a_damaged_configuration_is_never_silently_another_one(stored, capsys, damage, examples):
    @examples
    @given(damage(stored))
    def holds(text: bytes) -> None:
        assert_same_or_told(stored, text, capsys)

    holds()
