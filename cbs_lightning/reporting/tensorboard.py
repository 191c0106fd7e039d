"""A study's curves and figures for TensorBoard: steps and SFO against batch size."""

import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from filelock import Timeout
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MultilineChartContent,
)
from tensorboard.plugins.image import metadata as images
from tensorboard.util.tensor_util import make_tensor_proto

from cbs_lightning.analysis.curves import BatchSizePoint, Curve
from cbs_lightning.files import file_names, inside, remove_scratch
from cbs_lightning.results.events import EventWriter, event_paths, replace_events
from cbs_lightning.results.locks import held

SWEEP = "_sweep"  # TensorBoard lists it before the runs
FIRST = 0.0  # where it goes by when they began
CURVE, PAGE = ".curve", ".page"
SECONDS_TO_WAIT = 10  # for another process that writes the same
QUANTITIES = {
    "SFO": "SFO complexity K*b, gradient evaluations until the threshold",
    "steps": "Steps K, parameter updates until the threshold",
}
# A group of its own: TensorBoard opens the first two, and the third has no curves of a sweep. In
# parentheses it would break the Custom Scalars page.
LOG2 = ", log2 values"
# TensorBoard's abscissa, the step, is a whole number. Curves by another one are another run to it,
# so that it forgets what it has read where the first batch size comes that is no power of two.
OF_HUNDREDTHS = ",100log2b"
OCTAVES, HUNDREDTHS = "Against log2 batch size", "Against 100 log2 batch size"


def write_sweep_events(
    study_directory: Path, study_curves: list[Curve], pictures: Mapping[str, bytes]
) -> None:
    """Write what TensorBoard shows of a study besides its runs: curves, layout and figures.

    A curve has a point, the median, at each batch size where all seeds reached the threshold.
    `pictures` are PNG files by figure name, in the order to show them.
    """
    directory = _sweep_directory(study_directory)
    with suppress(Timeout), held(directory, SECONDS_TO_WAIT):
        _write_curves(directory, study_curves)
        _write_page(directory, pictures)


def write_sweep_curves(study_directory: Path, study_curves: list[Curve]) -> None:
    """Write the curves alone; the layout and figures stay as they are."""
    directory = _sweep_directory(study_directory)
    with suppress(Timeout), held(directory, SECONDS_TO_WAIT):
        _write_curves(directory, study_curves)


def has_page(study_directory: Path) -> bool:
    return bool(event_paths(study_directory / SWEEP, PAGE))


def _sweep_directory(study_directory: Path) -> Path:
    """The directory, which exists and is not a link."""
    directory = inside(study_directory, SWEEP)
    directory.mkdir(exist_ok=True)
    return directory


def _write_curves(directory: Path, study_curves: list[Curve]) -> None:
    sizes = [point.batch_size for curve in study_curves for point in curve.points]
    octaves = all(size.bit_count() == 1 for size in sizes)
    shown = {curve.variant: curve for curve in study_curves if _points(curve)}
    names = {
        variant: name + ("" if octaves else OF_HUNDREDTHS)
        for variant, name in file_names(shown).items()
    }
    for variant, curve in shown.items():
        own = inside(directory, names[variant])
        own.mkdir(exist_ok=True)
        remove_scratch(own)
        replace_events(own, CURVE, _curve_events(curve, octaves))
    for older in directory.iterdir():
        if older.name not in names.values() and older.is_dir() and not older.is_symlink():
            _remove_curve(older)


def _remove_curve(directory: Path) -> None:
    """Remove what `_write_curves` wrote, and the directory unless something else is in it."""
    remove_scratch(directory)
    for path in event_paths(directory, CURVE):
        path.unlink()
    with suppress(OSError):
        directory.rmdir()


def _curve_events(curve: Curve, octaves: bool) -> bytes:
    asked = curve.request.describe()
    missing = "Batch sizes at which not all seeds reached it have no point."
    group, scale = (OCTAVES, 1) if octaves else (HUNDREDTHS, 100)
    descriptions = {
        f"{group}{scaled}/{name}": f"{what}: {asked}, the median over seeds. {missing}"
        for scaled in ("", LOG2)
        for name, what in QUANTITIES.items()
    }
    content = BytesIO()
    events = EventWriter(content, FIRST, descriptions)
    events.forget(descriptions)
    for point in _points(curve):
        values = {"SFO": point.sfo or 0, "steps": point.steps or 0}
        tagged = {f"{group}/{name}": value for name, value in values.items()}
        tagged |= {f"{group}{LOG2}/{name}": math.log2(value) for name, value in values.items()}
        events.scalars(tagged, round(scale * math.log2(point.batch_size)))
    return content.getvalue()


def _points(curve: Curve) -> list[BatchSizePoint]:
    return [point for point in curve.points if point.all_reached]


def _write_page(directory: Path, pictures: Mapping[str, bytes]) -> None:
    remove_scratch(directory)
    content = BytesIO()
    events = EventWriter(content, FIRST)
    events.restart()
    events.summary(_layout())
    for number, (name, picture) in enumerate(pictures.items(), 1):
        events.summary(_image(f"Figures/{number:02} {name}", picture))
    replace_events(directory, PAGE, content.getvalue())


def _layout() -> Summary:
    """A chart takes the tags that its regular expressions match."""
    sweep = [
        _chart(f"{prefix}{name} against log2 b", f"Against [^,]*{scaled}/{name}$")
        for prefix, scaled in (("log2 ", LOG2), ("", ""))
        for name in QUANTITIES
    ]
    categories = [Category(title="Steps and SFO against batch size", chart=sweep)]
    for abscissa, title in (("by_sfo", "Runs by SFO"), ("by_step", "Runs by step")):
        charts = [
            _chart(f"{name} {abscissa.replace('_', ' ')}", f"{name.replace(' ', '_')}/{abscissa}$")
            for name in ("loss", "accuracy", "learning rate")
        ]
        categories.append(Category(title=title, chart=charts))
    tensor = make_tensor_proto(Layout(category=categories).SerializeToString())
    metadata = custom_scalars.create_summary_metadata()
    tag = custom_scalars.CONFIG_SUMMARY_TAG
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def _chart(title: str, tag: str) -> Chart:
    return Chart(title=title, multiline=MultilineChartContent(tag=[tag]))


def _image(tag: str, picture: bytes) -> Summary:
    width, height = struct.unpack(">II", picture[16:24])  # of a PNG's first chunk
    tensor = make_tensor_proto([str(width).encode(), str(height).encode(), picture])
    metadata = images.create_summary_metadata(display_name=tag, description="")
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
