"""Publishes a study as two small CSV files, from which it can be drawn again.

`<study>.csv` has every finished run's answer to every threshold and rule, with its machine,
versions and commit; `<study>_epochs.csv` has the mean loss of every epoch. The losses of single
steps are not published. `python -m cbs_lightning.reporting.published OUTPUT_DIR FOLDER` adds the
runs under OUTPUT_DIR to the files in FOLDER, and keeps those that are already there.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cbs_lightning.analysis.summary import summary_rows
from cbs_lightning.console import count_of, print_line
from cbs_lightning.errors import UserError, output_errors
from cbs_lightning.files import write_atomically
from cbs_lightning.results.result import UNFINISHED, Result, Run, seed_order
from cbs_lightning.results.store import read_study, studies
from cbs_lightning.results.trajectory import Readings, Rule, RuleName
from cbs_lightning.results.validation import check_result

LEFT_OUT = "configuration"

Row = TypeVar("Row")


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run: the plain mean of its mini-batch losses."""

    variant: str
    batch_size: int
    seed: int | None
    config_hash: str
    epoch: int
    loss: float
    accuracy: float | None


def publish(study: Path, folder: Path) -> list[Path]:
    """Add the study's finished runs to the published files, and return their paths.

    Writes nothing for a study without a finished run.
    """
    runs = [run for run in read_study(study)[0] if run.result.ended not in UNFINISHED]
    results, epochs = published_files(folder, study.name)
    here = {run.result.config_hash for run in runs}
    rows = [row for row in _read_if_there(results, read_results) if row.config_hash not in here]
    losses = [row for row in _read_if_there(epochs, read_epochs) if row.config_hash not in here]
    rows += summary_rows(runs) if runs else []
    losses += [epoch for run in runs for epoch in epochs_of(run)]
    rows.sort(key=lambda row: (*_place(row), -row.threshold, row.rule))
    losses.sort(key=lambda row: (*_place(row), row.epoch))
    if not rows:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    _write(results, [name for name in _columns(Result) if name != LEFT_OUT], rows)
    _write(epochs, _columns(Epoch), losses)
    return [results, epochs]


def published_files(folder: Path, study: str) -> tuple[Path, Path]:
    return folder / f"{study}.csv", folder / f"{study}_epochs.csv"


def epochs_of(run: Run) -> Iterator[Epoch]:
    result = run.result
    rule = Rule(RuleName.EPOCH, result.steps_per_epoch, result.data_size)
    readings = Readings.of(run.trajectory, rule)
    for index in range(len(readings.ends)):
        reading = readings.reading(index)
        yield Epoch(
            result.variant,
            result.batch_size,
            result.seed,
            result.config_hash,
            index + 1,
            float(f"{reading.loss:.5g}"),
            float(f"{reading.accuracy:.5g}") if reading.accuracy is not None else None,
        )


def read_results(path: Path) -> list[Result]:
    """The rows as results without a configuration.

    Raises `UserError` that names the row and the column of a wrong value.
    """
    rows = _read(path, Result, left_out=(LEFT_OUT,))
    seen: dict[tuple[object, ...], int] = {}
    for number, row in enumerate(rows, 2):
        try:
            check_result(row)
        except ValueError as error:
            raise _wrong(path, number, str(error)) from error
        if row.study != path.stem:
            raise _wrong(path, number, f"study is {row.study!r}, not {path.stem!r}")
        same = (row.config_hash, row.threshold, row.rule)
        if seen.setdefault(same, number) != number:
            raise _wrong(path, number, f"config_hash is that of row {seen[same]} once more")
    return rows


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs; raises the same errors as `read_results`."""
    rows = _read(path, Epoch)
    latest: dict[str, int] = {}
    for number, row in enumerate(rows, 2):
        if not math.isfinite(row.loss):
            raise _wrong(path, number, f"loss is {row.loss}")
        if row.epoch != latest.get(row.config_hash, 0) + 1:
            raise _wrong(path, number, f"epoch is {row.epoch}, which does not follow")
        latest[row.config_hash] = row.epoch
    return rows


def _wrong(path: Path, number: int, what: str) -> UserError:
    """`what` begins with the name of a column."""
    column, _, how = what.partition(" ")
    return UserError(f"{path}: row {number}, column {column.strip(',')}: {how}")


def _read_if_there(path: Path, read: Callable[[Path], list[Row]]) -> list[Row]:
    return read(path) if path.exists() else []


def _place(row: Result | Epoch) -> tuple[str, int, tuple[bool, int]]:
    return row.variant, row.batch_size, seed_order(row.seed)


def _columns(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Any]) -> None:
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in asdict(row).items()})
    write_atomically(path, text.getvalue().encode())


def _cell(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _read(path: Path, kind: type[Row], left_out: Sequence[str] = ()) -> list[Row]:
    types = {name: hint for name, hint in get_type_hints(kind).items() if name not in left_out}
    optional = {field.name for field in fields(kind) if field.default is not MISSING}  # type: ignore[arg-type]
    try:
        reader = csv.DictReader(StringIO(path.read_text()), strict=True)
        names, lines = list(reader.fieldnames or ()), list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is no table ({error})") from error
    wrong = {name: "is missing" for name in types if name not in (*names, *optional)}
    wrong |= {name: "does not belong here" for name in names if name not in types}
    for name, reason in wrong.items():
        raise UserError(f"{path}: row 1, column {name}: {reason}")
    own = {name: hint for name, hint in types.items() if name in names}
    return [kind(**_parse_row(path, number, line, own)) for number, line in enumerate(lines, 2)]


def _parse_row(
    path: Path, number: int, line: Mapping[str | None, Any], types: Mapping[str, Any]
) -> dict[str, Any]:
    if None in line:
        raise UserError(f"{path}: row {number} has more columns than there are names")
    found = {}
    for name, kind in types.items():
        text = line.get(name)
        try:
            found[name] = _parse(kind, text)
        except (ValueError, TypeError) as error:
            reason = "is missing" if text is None else f"cannot be {text!r}"
            raise UserError(f"{path}: row {number}, column {name}: {reason}") from error
    return found


def _parse(kind: Any, text: str | None) -> Any:
    if text is None:
        raise ValueError("missing")
    options = get_args(kind)
    if NoneType in options:
        if text == "":
            return None
        kind = next(option for option in options if option is not NoneType)
    if get_origin(kind) is dict:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("not an object")
        return values
    if kind is bool:
        return ("False", "True").index(text) == 1
    return kind(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--study", help="only this one")
    arguments = parser.parse_args()
    for study in studies(arguments.output_dir):
        if arguments.study in (None, study.name):
            try:
                with output_errors(arguments.folder):
                    files = publish(study, arguments.folder)
            except UserError as error:
                sys.exit(f"error: {error}")
            if not files:
                print_line(f"{study.name}: no finished run yet, nothing written")
                continue
            runs = count_of(len({row.config_hash for row in read_results(files[0])}), "run")
            print_line(f"{study.name}: {runs} in {files[0]} and {files[1]}")


if __name__ == "__main__":
    main()
