"""Studies of many optimizers stay readable: a panel per family, names beside the curves."""

from itertools import combinations, pairwise

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from cbs_lightning.analysis.study import Study, read
from cbs_lightning.reporting.colors import COLORS, FAMILIES, colors_of, family_of, marks_of
from cbs_lightning.reporting.figures.by_batch_size import MOST_TOGETHER, draw
from cbs_lightning.reporting.figures.by_threshold import draw_by_threshold
from cbs_lightning.reporting.figures.style import (
    PLOT_HEIGHT,
    STYLE,
    WIDTH,
    add_legend,
    key,
    write_figure,
)
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


def test_names_do_not_overlap_and_stay_inside(many, tmp_path):
    figure = draw("many", many.curves, "sfo")
    write_figure(figure, tmp_path / "sfo")
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
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "abandoned: a lower bound" in labels and "median and range of seeds" in labels
    assert "threshold not reached" in labels and "least SFO" in labels


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
    shown = [legend.get_window_extent() for legend in figure.legends]
    assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(shown))


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


def test_b_star_against_the_threshold_has_a_panel_per_family(many):
    figure = draw_by_threshold("many", many.across)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.lines}
    assert list(panels) == [*FAMILIES, "Others"]
    for family, axes in panels.items():
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        own = [one.variant for one in many.across if family_of(one.optimizer) == family]
        assert names == own
        low, high = axes.get_xlim()
        assert low > high  # stricter to the right
