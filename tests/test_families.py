"""Studies of many optimizers stay readable: a panel per family, names beside the curves."""

from itertools import combinations, pairwise

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from cbs_lightning.analysis.study import Study, read
from cbs_lightning.reporting.colors import (
    COLORS,
    FAMILIES,
    OTHER_COLORS,
    colors_of,
    family_of,
    marks_of,
)
from cbs_lightning.reporting.figures.by_batch_size import MOST_TOGETHER, draw
from cbs_lightning.reporting.figures.style import (
    PLOT_HEIGHT,
    STYLE,
    WIDTH,
    add_legend,
    key,
    write_figure,
)
from cbs_lightning.reporting.figures.write import _add_to_title, figures_of, left_out
from tests.optimizers import OPTIMIZERS
from tests.studies import make_run

SIZES = (4, 8, 16, 32, 64)
SETTINGS = ("", " lr_scaling=sqrt", " scaling_rule=half_life", " scaling_rule=sqrt_sde")
RULES = tuple(f"adam{setting}" for setting in SETTINGS)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Study:
    """Eighteen and more variants, some that miss the threshold, some alike in their last point."""
    directory = tmp_path_factory.mktemp("studies") / "many"
    for number, optimizer in enumerate([*OPTIMIZERS, "mine"]):
        for place, size in enumerate(SIZES):
            epochs = 3 + (place - number % 4) ** 2
            missed = number % 5 == 0 and size == 64
            make_run(directory, optimizer, size, epochs, reached=not missed)
    make_run(directory, "adam", 128, 9, abandoned=True)
    make_run(directory, "adam", 16, 7, seed=1)
    study, lines = read(directory)
    assert study is not None and lines == []
    return study


def test_every_optimizer_has_a_family_and_a_colour_of_its_own():
    assert set(OPTIMIZERS) == set(COLORS)
    assert len(set(COLORS.values())) == len(COLORS)
    assert family_of("mine") == "Others" and "mine" in colors_of([("mine", "mine")])
    variants = [(f"{name} lr=1", name) for name in OPTIMIZERS]
    assert colors_of(variants) == {variant: COLORS[name] for variant, name in variants}


def seen(color):
    """OkLab (Ottosson, 2020), times 100: distances in it are about as large as they look."""
    light = np.array(
        [c / 12.92 if c < 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    )
    cones = np.cbrt(
        [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]] @ light
    )
    to_lab = [[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return 100 * np.array(to_lab) @ cones


def distance(one, other):
    return float(np.linalg.norm(seen(one) - seen(other)))


def test_other_optimizers_look_like_none_of_the_known_ones():
    """Several of the colours were those of Lion, Adafactor, RMSprop, NAdam and Schedule-free."""
    everything = [*COLORS.values(), *OTHER_COLORS]
    for color in OTHER_COLORS:
        assert min(distance(color, each) for each in everything if each != color) > 12, color
    assert len({*everything}) == len(everything)
    mine = colors_of((name, name) for name in ("mine", "yours", *COLORS))
    assert {mine["mine"], mine["yours"]} == {*OTHER_COLORS[:2]}


@pytest.mark.parametrize("name", COLORS)
def test_shades_of_an_optimizer_differ(name):
    """Those of Muon, which is black, had half of them alike."""
    rules = [f"{name} lr={number}" for number in range(1, 7)]
    shades = colors_of([("sgd", "sgd"), ("lion", "lion"), *((rule, name) for rule in rules)])
    for one, other in pairwise(rules):
        assert distance(shades[one], shades[other]) > 3.5


def test_shades_of_one_family_differ():
    rules = [(f"{name} lr={number}", name) for name in ("nadam", "yogi") for number in range(1, 6)]
    shades, marks = colors_of(rules), marks_of(rules)
    for one, other in combinations([rule for rule, _ in rules], 2):
        assert distance(shades[one], shades[other]) > 3.9 and marks[one] != marks[other]


def test_within_a_family_marks_differ():
    marks = marks_of((name, name) for name in OPTIMIZERS)
    for own in FAMILIES.values():
        assert len({marks[name] for name in own}) == len(own)
    alone = marks_of([("mine", "mine"), ("yours", "yours"), ("mine lr=1", "mine")])
    assert alone == {"mine": 0, "yours": 0, "mine lr=1": 1}


@pytest.mark.parametrize("name", ["sfo", "steps", "seconds"])
def test_many_curves_are_drawn_in_a_panel_per_family(many, name):
    assert len(many.curves) > MOST_TOGETHER
    figure = draw("many", many.curves, name)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.lines}
    assert list(panels) == [*FAMILIES, "Others"]
    for curve in many.curves:
        axes = panels[family_of(curve.optimizer)]
        points = [(p.batch_size, getattr(p, name)) for p in curve.points if p.reached]
        drawn = [list(zip(*line.get_data(), strict=True)) for line in axes.lines]
        assert points in drawn, curve.variant
        names = [text.get_text() for text in axes.texts if isinstance(text, Annotation)]
        assert names.count(curve.variant) == 1


def test_names_do_not_overlap_and_stay_inside(many):
    figure = draw("many", many.curves, "sfo")
    figure.draw_without_rendering()  # places the names
    for axes in figure.axes:
        boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}
        boxes = {text: axes.figure.transFigure.inverted().transform_bbox(box)
                 for text, box in boxes.items()}  # fmt: skip
        for (one, box), (other, its) in combinations(boxes.items(), 2):
            apart = box.y1 <= its.y0 + 1e-3 or its.y1 <= box.y0 + 1e-3
            assert apart or box.x1 < its.x0 or its.x1 < box.x0, (one, other)
        for box in boxes.values():
            assert box.x0 >= 0 and box.x1 <= 1


def test_what_was_abandoned_and_the_range_of_seeds_are_shown(many):
    figure = draw("many", many.curves, "sfo")
    (axes,) = [axes for axes in figure.axes if axes.get_title(loc="left") == "Adam"]
    (adam,) = [curve for curve in many.curves if curve.variant == "adam"]
    (given_up,) = [run for point in adam.points for run in point.abandoned]
    drawn = [tuple(map(float, place)) for line in axes.lines
             for place in zip(*line.get_data(), strict=True)]  # fmt: skip
    assert (128.0, float(given_up.sfo_exceeded)) in drawn
    figure.draw_without_rendering()
    assert all(_left_end(axes, text) > 128 for text in axes.texts)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "abandoned: a lower bound" in labels and "median and range of runs" in labels
    assert "threshold not reached" in labels and "least SFO" in labels


def _left_end(axes, text) -> float:
    """Of a name, as a batch size."""
    return axes.transData.inverted().transform(Text.get_window_extent(text).min)[0]


def test_few_curves_stay_together(many):
    assert len(draw("few", many.curves[:MOST_TOGETHER], "sfo").axes) == 1


def test_an_optimizer_with_several_curves_has_their_names_beside_them(many, tmp_path):
    """The name of the optimizer is enough for its only one, whatever its settings."""
    for size in SIZES:
        for optimizer in ("adam", "lion"):
            make_run(tmp_path / "two", optimizer, size, 4, variant=f"{optimizer} lr=0.1")
    other, _ = read(tmp_path / "two")
    without_lion = [curve for curve in many.curves if curve.optimizer != "lion"]
    figure = draw("two", [*without_lion, *other.curves], "sfo")
    names = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"adam", "adam lr=0.1", "lion"} <= names
    assert len(names) == len(without_lion) + 2


@pytest.fixture(scope="module")
def rules(tmp_path_factory) -> Study:
    """One optimizer with several variants."""
    directory = tmp_path_factory.mktemp("studies") / "rules"
    for number, name in enumerate(RULES):
        for place, size in enumerate(SIZES):
            for seed in (0, 1):
                epochs = 4 + seed + (place - number) ** 2
                make_run(directory, "adam", size, epochs, variant=name, seed=seed)
    study, _ = read(directory)
    assert study is not None
    return study


@pytest.mark.parametrize("name", ["sfo", "steps", "seconds"])
def test_the_variants_of_one_optimizer_differ_in_colour_and_have_whole_names(rules, name, tmp_path):
    figure = draw("rules", rules.curves, name)
    write_figure(figure, tmp_path / name)
    handles = {
        text.get_text().split("\n")[0].split(":")[0]: handle.get_color()
        for legend in figure.legends
        for text, handle in zip(legend.get_texts(), legend.get_lines(), strict=False)
    }
    assert set(RULES) <= set(handles)
    assert len({handles[rule] for rule in RULES}) == len(RULES)
    assert handles["adam"] == COLORS["adam"]
    for legend in figure.legends:
        box = figure.transFigure.inverted().transform_bbox(legend.get_window_extent())
        assert box.x1 <= 1 and box.y0 >= -0.01
    figure.draw_without_rendering()
    shown = [[text.get_window_extent() for text in legend.get_texts()] for legend in figure.legends]
    for above, below in pairwise(shown):
        assert min(box.y0 for box in above) >= max(box.y1 for box in below)


def test_a_legend_has_as_many_columns_as_have_room():
    for names, columns in ((RULES, 2), (("adam", "sgd", "momentum", "lion"), 3)):
        figure = Figure((WIDTH, PLOT_HEIGHT))
        with mpl.rc_context(STYLE):
            add_legend(figure, ([key(name) for name in names], 3))
            figure.draw_without_rendering()
        (legend,) = figure.legends
        places = {round(text.get_window_extent().x0) for text in legend.get_texts()}
        assert len(places) == columns
        assert legend.get_window_extent().x1 <= figure.bbox.x1


@pytest.fixture(scope="module")
def rates(tmp_path_factory) -> Study:
    """Twenty learning rates of one optimizer, of which the largest three never reach it."""
    directory = tmp_path_factory.mktemp("studies") / "rates"
    for number in range(20):
        variant = f"adam lr={1e-5 * 2**number:.3g} scaling_rule=half_life"
        for size in (4, 64):
            epochs = 3 + abs(number - 9)
            make_run(directory, "adam", size, epochs, variant=variant, reached=number < 17)
    study, _ = read(directory)
    assert study is not None
    return study


def test_many_variants_of_one_optimizer_stay_readable(rates):
    figure = draw("rates", rates.curves, "sfo")
    figure.draw_without_rendering()  # places the names
    (axes,) = [axes for axes in figure.axes if axes.lines]
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    names = [text.get_text() for text in labels]
    assert sorted(names) == sorted(f"adam lr={1e-5 * 2**number:.3g}" for number in range(20))
    assert "all with scaling_rule=half_life" in figure.get_suptitle()
    assert len({text.get_color() for text in labels}) == 20
    panel = axes.get_window_extent()
    boxes = sorted((Text.get_window_extent(text) for text in labels), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    assert boxes[0].y0 >= panel.y0 - 1 and boxes[-1].y1 <= panel.y1 + 1
    assert all(panel.x0 < box.x0 and box.x1 <= panel.x1 + 1 for box in boxes)


def test_colours_of_many_variants_are_in_the_order_of_their_numbers():
    names = [f"adam lr={rate}" for rate in ("1e-05", "0.0001", "0.02", "0.3", "1", "5", "20", "90")]
    alone = colors_of((name, "adam") for name in reversed(names))
    lightness = [sum(bytes.fromhex(alone[name][1:])) for name in names]
    assert lightness == sorted(lightness) and len({*alone.values()}) == len(names)
    beside = colors_of([("sgd", "sgd"), *((name, "adam") for name in names)])
    assert beside["sgd"] == COLORS["sgd"] and len({*beside.values()}) == len(names) + 1
    few = colors_of([("sgd", "sgd"), *((name, "adam") for name in names[:4])])
    assert {*few.values()} == {COLORS["sgd"], COLORS["adam"]}


@pytest.fixture(scope="module")
def close(tmp_path_factory) -> Study:
    """Ten optimizers at one batch size: close medians, wide ranges, some never reach it."""
    directory = tmp_path_factory.mktemp("studies") / "close"
    for number, optimizer in enumerate(OPTIMIZERS[:10]):
        for seed, epochs in enumerate((2, 8, 8 + number % 2, 9, 30)):
            make_run(directory, optimizer, 100, epochs, seed=seed, reached=number % 4 > 0)
    study, _ = read(directory)
    assert study is not None
    return study


def test_what_never_reached_the_threshold_is_named(close):
    figure = draw("close", close.curves, "sfo")
    names = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert names == set(OPTIMIZERS[:10])


@pytest.mark.parametrize("name", ["sfo", "seconds"])
def test_ranges_are_inside_and_there_are_several_ticks(close, name):
    figure = draw("close", close.curves, name)
    for axes in (axes for axes in figure.axes if axes.lines):
        low, high = axes.get_ylim()
        ends = [y for lines in axes.collections for path in lines.get_paths()
                for _, y in path.vertices]  # fmt: skip
        assert all(low < y < high for y in ends)
        ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert len(ticks) >= 2
        left, right = axes.get_xlim()
        assert any(left <= tick <= right for tick in axes.get_xticks())


def test_conditions_are_told_above_all_panels(many):
    figure = draw("many", many.curves, "sfo")
    first = figure.axes[0].get_title(loc="left")
    _add_to_title(figure, "on two machines")
    assert figure.get_suptitle().endswith("on two machines")
    assert figure.axes[0].get_title(loc="left") == first


def test_figures_in_one_pair_of_axes_are_left_out_with_many_curves(rates, rules):
    names = [name for name, _ in figures_of(rates)]
    assert "sfo" in names and not {"tradeoff", "critical_batch"} & {*names}
    line = left_out(rates)
    assert "tradeoff and critical_batch are left out with more than 9 curves" in line
    assert "VARIANTS=" in line or "--variants=" in line
    assert left_out(rules) == ""


def test_few_curves_have_bands_and_several_have_none(rules):
    for count, bands in ((2, True), (4, False)):
        figure = draw("rules", rules.curves[:count], "sfo")
        labels = [text.get_text() for each in figure.legends for text in each.get_texts()]
        assert ("90 % band for the curve" in labels) is bands
        assert bool(figure.axes[0].collections) or not bands
