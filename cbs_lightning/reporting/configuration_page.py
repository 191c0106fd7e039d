"""The command `python -m cbs_lightning.reporting.configuration_page`: docs/configuration.md.

Keys, defaults and descriptions come from the files in conf/ and their comments. The allowed values
come from the schema, in the words of its error messages. A comment at the left margin begins a
section: its first line is the heading, the rest an introduction.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import yaml

from cbs_lightning.config.composition import CONF_DIR
from cbs_lightning.config.schema import RunConfig, Settings
from cbs_lightning.console import print_line
from cbs_lightning.errors import ConfigError
from cbs_lightning.files import PROJECT, write_atomically

PAGE = Path("docs", "configuration.md")
INTRODUCTION = """\
<!-- Written by `make docs` from conf/ and cbs_lightning/config/schema.py. -->
# Configuration

This page lists every key that you can set: its default, the values it may have, and what it does.
Type keys after the command, as `key=value`:

```
python train.py optimizer=adam optimizer.lr=3e-4 batch_size=128 stop.loss=0.2
python train.py -m batch_size=16,32,64 seed=0,1,2
```

With `-m` (a sweep), commas separate values, and all combinations are run: [sweeps.md](sweeps.md).
`null` means *none* or *automatic*; the description says which. `python train.py --cfg job` prints
the configuration that a command would use, without training or looking at the values. An unknown
key or a value that is not allowed ends a command with a one-line message before anything is
written. If a key is typed twice, the last one counts.

Terms used below: *b* is the batch size and a *step* one parameter update. A run trains until its
training loss falls to a threshold; *K* is the number of steps that takes, and *K·b* the number of
per-sample gradients, which the literature calls *SFO complexity*. *b\\** is the batch size with the
smallest K·b.
"""
GROUPS = {  # heading and introduction of each
    "optimizer": (
        "Optimizers",
        "The default is `adam` for this project's models and `own` for your own LightningModule. "
        "Each setting is a key, such as `optimizer.lr=3e-4`. To add an optimizer, or to give "
        "parameter groups settings of their own, see [optimizers.md](optimizers.md).",
    ),
    "data": (
        "Data",
        "The default is `digits`. MNIST and CIFAR-10 can also be placed in `data_dir` by hand, as "
        "`MNIST/raw/`, `cifar-10-batches-py/` or `cifar-10-batches-bin/`. For your own data see "
        "[own_model.md](own_model.md).",
    ),
    "model": (
        "Models",
        "The default is `resnet20`. For your own model see [own_model.md](own_model.md).",
    ),
    "scheduler": (
        "Learning-rate schedules",
        "The default is `constant`. Details: [learning_rates.md](learning_rates.md#schedules).",
    ),
    "logger": (
        "Loggers",
        "None by default; `logger=[csv,wandb]` uses two. See [trainer.md](trainer.md#loggers).",
    ),
    "experiment": (
        "Experiments",
        "An experiment is a named set of keys, usually with a grid to sweep: "
        "`python train.py -m experiment=digits`. To write one see [sweeps.md](sweeps.md).",
    ),
}
FILES = (  # of keys without a schema of ours: heading, prefix, file, introduction
    (
        "Lightning's Trainer", "trainer.", "trainer/default.yaml",
        "Other flags, callbacks of your own, and what is refused: [trainer.md](trainer.md).",
    ),
    (
        "Search", "hydra.sweeper.", "hydra/sweeper/critical_batch.yaml",
        "With `hydra/sweeper=critical_batch`. Details: [search.md](search.md).",
    ),
    (
        "SLURM", "hydra.launcher.", "hydra/launcher/slurm.yaml",
        "With `hydra/launcher=slurm`. Details: [cluster.md](cluster.md).",
    ),
)  # fmt: skip
INTERNAL = {"_target_", "_partial_", "defaults", "fused", "foreach", "groups"}
# A page, a key with a value, or a key's name.
SPECIAL = re.compile(
    r"docs/(?P<page>\w+\.md)|(?<![\w/.])(?:[\w/.]+=[\w.]+|[a-z][\w/]*(?:[._][a-z]\w*)+)(?![\w/])"
)


@dataclass(frozen=True)
class Key:
    """A key of a file in conf/, with its default as written there."""

    name: str
    default: str
    about: str


@dataclass(frozen=True)
class Section:
    title: str
    about: str
    keys: list[Key]


def page() -> str:
    """The text of docs/configuration.md."""
    allowed = dict(allowed_values(RunConfig))
    lines = INTRODUCTION.splitlines()
    for section in sections(CONF_DIR / "config.yaml"):
        keys = [key for key in section.keys if key.name in allowed]
        if keys:
            lines += ["", f"## {section.title}", ""]
            lines += [linked(section.about), ""] if section.about else []
            lines += _table(keys, allowed)
    for group, (title, about) in GROUPS.items():
        lines += ["", f"## {title}", "", about, "", *_options(CONF_DIR / group)]
    for title, prefix, path, about in FILES:
        keys = [replace(key, name=prefix + key.name) for key in settings(CONF_DIR / path)]
        lines += ["", f"## {title}", "", about, "", *_table(keys, {})]
    return "\n".join(lines) + "\n"


def sections(path: Path) -> Iterator[Section]:
    """The parts of a YAML file that begin with a comment at its left margin."""
    lines = path.read_text().splitlines()
    heads = [n for n, line in enumerate(lines) if line[:1] == "#" and not lines[n - 1].strip()]
    keys = _keys(path)
    for head, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        last = next((n for n in range(head, end) if lines[n][:1] != "#"), end)
        title, *about = [line.lstrip("# ") for line in lines[head:last]]
        own = [key for line, key in keys if head < line < end]
        yield Section(title, " ".join(about), own)


def settings(path: Path) -> list[Key]:
    """The settings in a YAML file that a user has a reason to change."""
    return [key for _, key in _keys(path) if INTERNAL.isdisjoint(key.name.split("."))]


def allowed_values(schema: type, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The allowed values of each key of the schema, in the words of its error messages."""
    hints = get_type_hints(schema, include_extras=True)
    for field in fields(schema):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint) and isinstance(hint, type):
            yield from allowed_values(hint, f"{name}.")
        elif get_origin(hint) is not Annotated:
            if hint != Settings:
                yield name, ""
        elif get_args(hint)[0] != Settings:
            yield name, _allowed(get_args(hint)[1])


def linked(text: str) -> str:
    """The text with links to the pages that it names, and keys set as code."""
    plain = re.sub(r"[|<*\[]", r"\\\g<0>", text)
    return SPECIAL.sub(
        lambda m: "[{0}]({0})".format(m["page"]) if m["page"] else f"`{m[0]}`", plain
    )


def _allowed(constraint: Any) -> str:
    try:
        constraint.check("key", object())
    except ConfigError as error:
        said = str(error).partition(">: ")[2].replace(">= ", "≥\u00a0").replace("<= ", "≤\u00a0")
        kind, _, names = said.partition("allowed: ")
        if not kind:
            return ", ".join(f"`{name}`" for name in names.split(", "))
        return linked(said.removeprefix("must be "))
    return ""


def _keys(path: Path) -> list[tuple[int, Key]]:
    """The keys of a YAML file in its order, each with the number of its line."""
    text = path.read_text()
    root = yaml.compose(text, yaml.SafeLoader)
    return list(_walk(root, text.splitlines(), "")) if isinstance(root, yaml.MappingNode) else []


def _walk(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[tuple[int, Key]]:
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from _walk(value, lines, f"{key}.")
            continue
        line = value.end_mark.line
        start = name.start_mark.line
        if value.start_mark.line == start:  # else a block of lines, such as a list of defaults
            written = lines[line][value.start_mark.column : value.end_mark.column]
            yield start, Key(key, written, _comment(lines, line, value.end_mark.column))


def _comment(lines: list[str], line: int, column: int) -> str:
    """The comment after a value, and the comment lines below it with the same indentation."""
    first = lines[line][column:].strip()
    found = [first.lstrip("# ")] if first.startswith("#") else []
    if found:
        for below in lines[line + 1 :]:
            if not below.startswith(" " * 20) or not below.strip().startswith("#"):
                break
            found.append(below.strip().lstrip("# "))
    return " ".join(found)


def _table(keys: list[Key], allowed: dict[str, str]) -> list[str]:
    header = ["key", "default", *(["allowed"] if allowed else []), "what it does"]
    rows = [header, ["---"] * len(header)]
    for key in keys:
        may_be = [allowed[key.name]] if allowed else []
        rows.append([f"`{key.name}`", _default(key.default), *may_be, linked(key.about)])
    return _lines(rows)


def _options(folder: Path) -> list[str]:
    """A table of the options of a group, and one of those settings that have a comment."""
    rows = []
    explained: dict[tuple[str, str], list[str]] = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.stem in ("default", "none"):
            continue
        own = [] if folder.name == "experiment" else settings(path)
        for key in own:
            if key.about:
                explained.setdefault((key.name, key.about), []).append(path.stem)
        shown = ", ".join(f"`{key.name}={key.default}`" for key in own)
        rows.append((f"`{path.stem}`", linked(_lead(path)), shown))
    columns = 3 if any(row[2] for row in rows) else 2
    header = ("option", "what it is", "settings and defaults")
    lines = _lines(row[:columns] for row in (header, ("---",) * 3, *rows))
    if explained:
        meanings = [
            (f"`{folder.name}.{name}`", ", ".join(map("`{}`".format, options)), linked(about))
            for (name, about), options in explained.items()
        ]
        header = ("setting", "of", "what it does")
        lines += ["", *_lines([header, ("---",) * 3, *meanings])]
    return lines


def _lines(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def _lead(path: Path) -> str:
    """The comment at the beginning of a file."""
    found = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            found.append(line.lstrip("# "))
    return " ".join(found)


def _default(written: str) -> str:
    from_environment = re.fullmatch(r"\$\{oc\.env:(\w+),(.*)\}", written)
    if from_environment:
        return f"`{from_environment[2]}`, or the environment variable `{from_environment[1]}`"
    return f"`{written}`"


def main() -> None:
    write_atomically(PROJECT / PAGE, page().encode())
    print_line(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
