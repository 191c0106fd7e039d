"""What TensorBoard is given of a study: curves against batch size, their layout, the figures."""

import json
import math
import re
import shutil
from dataclasses import replace
from io import BytesIO

import pytest
from filelock import FileLock
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as LiveAccumulator,
)
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.util.tensor_util import make_ndarray

from cbs_lightning.analysis.curves import curves
from cbs_lightning.analysis.summary import usual_request
from cbs_lightning.files import LinkError
from cbs_lightning.reporting import live_study as live_sweep
from cbs_lightning.reporting import tensorboard as sweep_events
from cbs_lightning.reporting.live_study import LiveStudy, draw_sweep
from cbs_lightning.reporting.study_files import write_study
from cbs_lightning.reporting.tensorboard import SWEEP, write_sweep_events
from cbs_lightning.results import store
from cbs_lightning.results.locks import LOCK
from cbs_lightning.results.result import Request, Status, answer
from cbs_lightning.results.store import read_run, read_study, write_result
from cbs_lightning.results.trajectory import RuleName
from tests.hostile import snapshot
from tests.studies import log_run, make_run, make_study

GROUP = "Against log2 batch size"


@pytest.fixture
def study(tmp_path):
    make_study(tmp_path / "study")
    return tmp_path / "study"


def curves_of(study):
    runs, _ = read_study(study)
    request = usual_request(runs)
    return curves(answer(run.result, run.trajectory, request) for run in runs)


def picture(color):
    content = BytesIO()
    Image.new("RGB", (3, 2), color).save(content, "png")
    return content.getvalue()


def shown(study, variant, quantity, group=GROUP):
    events = EventAccumulator(str(study / SWEEP / variant))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(f"{group}/{quantity}")}


def page(study):
    """The layout, and the pictures by tag."""
    events = EventAccumulator(str(study / SWEEP))
    events.Reload()
    tensors = {
        tag: make_ndarray(event.tensor_proto)
        for tag in events.Tags()["tensors"]
        for event in events.Tensors(tag)
    }
    layout = Layout.FromString(tensors.pop("custom_scalars__config__").item())
    return layout, {tag: tensor.tolist() for tag, tensor in tensors.items()}


def files_of(study):
    found = [path for path in (study / SWEEP).rglob("*") if path.is_file() and path.name != LOCK]
    return sorted(str(path.parent.relative_to(study / SWEEP)) for path in found)


def test_a_curve_a_variant_with_the_numbers_of_the_results(study):
    write_sweep_events(study, curves_of(study), {})
    stored = [json.loads(path.read_text()) for path in study.glob("*/result.json")]
    for variant in ("adam", "sgd"):
        for quantity, key in (("steps", "steps"), ("SFO", "sfo")):
            expected = {
                int(math.log2(result["batch_size"])): result[key]
                for result in stored
                if result["variant"] == variant and result["status"] == "reached"
            }
            assert shown(study, variant, quantity) == expected
            logs = {step: math.log2(value) for step, value in expected.items()}
            found = shown(study, variant, quantity, f"{GROUP}, log2 values")
            assert found == pytest.approx(logs)
    assert set(shown(study, "sgd", "steps")) == {2, 3}


def test_several_seeds_give_their_median_where_all_reached(tmp_path):
    for seed, epochs in enumerate((3, 9, 5)):
        make_run(tmp_path / "study", "adam", 8, epochs, seed=seed)
    make_run(tmp_path / "study", "adam", 16, 5)
    make_run(tmp_path / "study", "adam", 16, 5, seed=1, reached=False)
    write_sweep_events(tmp_path / "study", curves_of(tmp_path / "study"), {})
    assert shown(tmp_path / "study", "adam", "steps") == {3: 5 * 125}


def test_batch_sizes_that_are_no_powers_of_two_have_another_axis_that_says_so(study):
    write_sweep_events(study, curves_of(study), {})
    make_run(study, "adam", 12, 4)
    write_sweep_events(study, curves_of(study), {})
    hundredths = "Against 100 log2 batch size"
    assert set(shown(study, "adam,100log2b", "steps", hundredths)) == {200, 300, 358, 400, 500}
    assert set(shown(study, "sgd,100log2b", "steps", hundredths)) == {200, 300}
    assert files_of(study) == [".", "adam,100log2b", "sgd,100log2b"]


def test_variants_make_paths_and_none_hides_another(tmp_path):
    for variant in ("adam betas=0.9,0.5", "adam,betas=0.9 0.5", "adam"):
        make_run(tmp_path / "study", "adam", 8, 3, variant=variant)
    write_sweep_events(tmp_path / "study", curves_of(tmp_path / "study"), {})
    names = sorted(path.name for path in (tmp_path / "study" / SWEEP).iterdir() if path.is_dir())
    assert names[:2] == ["adam", "adam,betas=0.9,0.5"]
    assert len(names) == 3 and names[2].startswith("adam,betas=0.9,0.5-")


def test_the_layout_groups_what_is_there(study):
    for run in read_study(study)[0]:
        log_run(run)
    write_sweep_events(study, curves_of(study), {})
    layout, _ = page(study)
    titles = ["Steps and SFO against batch size", "Runs by SFO", "Runs by step"]
    assert [category.title for category in layout.category] == titles
    assert [len(category.chart) for category in layout.category] == [4, 3, 3]
    tags = set()
    for directory in (study / SWEEP / "adam", next(study.glob("adam-b4-*"))):
        events = EventAccumulator(str(directory))
        events.Reload()
        tags |= {tag for tag in events.Tags()["scalars"] if not tag.startswith("result/")}
    matched = [
        tag
        for category in layout.category
        for chart in category.chart
        for expression in chart.multiline.tag
        for tag in tags
        if re.match(expression, tag)
    ]
    assert sorted(matched) == sorted(tags)


def test_figures_are_images_in_their_order(study):
    write_study(study)
    _, pictures = page(study)
    names = ["sfo", "steps", "seconds", "tradeoff", "critical_batch", "losses_adam", "losses_sgd"]
    assert list(pictures) == [f"Figures/{number:02} {name}" for number, name in enumerate(names, 1)]
    for name, (width, height, content) in zip(names, pictures.values(), strict=True):
        assert content == (study / "figures" / f"{name}.png").read_bytes()
        assert Image.open(BytesIO(content)).size == (int(width), int(height))


def test_writing_again_leaves_one_file_each_and_nothing_of_what_is_gone(study):
    for color in ("red", "blue"):
        write_sweep_events(study, curves_of(study), {"steps": picture(color)})
    assert files_of(study) == [".", "adam", "sgd"]
    assert page(study)[1] == {"Figures/01 steps": [b"3", b"2", picture("blue")]}
    for directory in study.glob("sgd-*"):
        shutil.rmtree(directory)
    write_sweep_events(study, curves_of(study), {})
    assert files_of(study) == [".", "adam"] and page(study)[1] == {}


def test_only_what_this_project_wrote_is_removed(study, tmp_path):
    write_sweep_events(study, curves_of(study), {})
    (study / SWEEP / "sgd" / "notes.txt").write_text("mine")
    (study / SWEEP / "mine").mkdir()
    (study / SWEEP / "mine" / "events.out.tfevents.1.h.1").write_text("of another program")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "events.out.tfevents.1.h.1.curve").write_text("another study's")
    (study / SWEEP / "linked").symlink_to(tmp_path / "elsewhere")
    for directory in study.glob("sgd-*"):
        shutil.rmtree(directory)
    write_sweep_events(study, curves_of(study), {})
    assert files_of(study) == [".", "adam", "mine", "sgd"]
    assert [path.name for path in (study / SWEEP / "sgd").iterdir()] == ["notes.txt"]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_a_link_in_place_of_a_curve_is_refused(study, tmp_path):
    write_sweep_events(study, curves_of(study), {})
    shutil.move(study / SWEEP / "adam", tmp_path / "elsewhere")
    (study / SWEEP / "adam").symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match="_sweep/adam: a symbolic link"):
        write_sweep_events(study, curves_of(study), {})
    assert snapshot(tmp_path / "elsewhere") == before


def test_what_is_written_for_tensorboard_is_no_run(study):
    write_sweep_events(study, curves_of(study), {})
    runs, broken = read_study(study)
    assert len(runs) == 8 and not broken
    assert list(store.studies(study.parent)) == [study]
    assert list(store.studies(study)) == [study]


def test_another_process_that_writes_the_same_is_not_disturbed(study, monkeypatch):
    write_sweep_events(study, curves_of(study), {})
    before = sorted((study / SWEEP).rglob("*"))
    monkeypatch.setattr(sweep_events, "SECONDS_TO_WAIT", 0.01)
    with FileLock(study / SWEEP / LOCK):
        write_sweep_events(study, curves_of(study), {})
        LiveStudy(study)()
    assert sorted((study / SWEEP).rglob("*")) == before


def test_a_refresh_shows_what_writing_all_shows(study):
    make_run(study, "momentum", 8, 4, seed=1)
    unfinished = make_run(study, "momentum", 16, 4)
    nothing = {
        "ended": Status.INTERRUPTED,
        "status": Status.INTERRUPTED,
        "steps": None,
        "sfo": None,
        "samples": None,
    }
    write_result(next(study.glob("momentum-b16-*")), replace(unfinished, **nothing))
    loose = make_run(study, "momentum", 32, 4)
    trajectory = read_run(next(study.glob("momentum-b32-*"))).trajectory
    other = answer(loose, trajectory, Request(3.5, RuleName.EPOCH, 1000))
    write_result(next(study.glob("momentum-b32-*")), other)
    late = make_run(study, "momentum", 64, 5)
    directory = next(study.glob("momentum-b64-*"))
    within = Request(1.0, RuleName.EPOCH, 1000, max_steps=late.steps_per_epoch)
    write_result(directory, answer(late, read_run(directory).trajectory, within))
    LiveStudy(study)()
    variants = ("adam", "sgd", "momentum")
    refreshed = {variant: shown(study, variant, "SFO") for variant in variants}
    write_sweep_events(study, curves_of(study), {})
    assert refreshed == {variant: shown(study, variant, "SFO") for variant in variants}
    assert refreshed["momentum"][5] == loose.sfo != other.sfo
    assert refreshed["momentum"][6] == late.sfo


def test_a_refresh_adds_what_has_finished_since(study):
    LiveStudy(study)()
    assert set(shown(study, "adam", "steps")) == {2, 3, 4, 5}
    result = make_run(study, "adam", 64, 9)
    make_run(study, "momentum", 64, 9)
    LiveStudy(study)()
    assert shown(study, "adam", "steps")[6] == result.steps
    assert set(shown(study, "momentum", "steps")) == {6}
    assert files_of(study) == [".", "adam", "momentum", "sgd"]


def test_a_refresh_reads_only_the_losses_that_it_needs(study, monkeypatch):
    read = []
    monkeypatch.setattr(live_sweep, "read_run", lambda path: read.append(path) or read_run(path))
    LiveStudy(study)()
    assert read == []
    directory = next(study.glob("sgd-b32-*"))
    write_result(directory, replace(read_run(directory).result, threshold=0.5))
    LiveStudy(study)()
    assert read == [directory]


def test_a_refresh_leaves_out_what_cannot_be_read(study):
    (next(study.glob("adam-b8-*")) / store.RESULT).write_text("{")
    (next(study.glob("adam-b16-*")) / store.RESULT).unlink()
    LiveStudy(study)()
    assert set(shown(study, "adam", "steps")) == {2, 5}


def test_a_refresh_of_a_study_without_results_writes_nothing(tmp_path):
    (tmp_path / "study" / "run").mkdir(parents=True)
    (tmp_path / "study" / "run" / store.CONFIG).write_text("")
    LiveStudy(tmp_path / "study")()
    assert not (tmp_path / "study" / SWEEP).exists()


def test_figures_are_drawn_beside_a_sweep_that_lasts(study, monkeypatch):
    monkeypatch.setattr(live_sweep, "SECONDS_BETWEEN_FIGURES", 0)
    live = LiveStudy(study)
    live()
    assert live._drawing.wait() == 0
    layout, pictures = page(study)
    assert list(pictures) == ["Figures/01 sfo", "Figures/02 steps"] and len(layout.category) == 3
    live()
    live.close()
    assert live._drawing.returncode is not None
    write_sweep_events(study, curves_of(study), {})  # nobody holds the lock


def test_a_short_sweep_has_the_layout_but_draws_nothing(study):
    live = LiveStudy(study)
    live()
    layout, pictures = page(study)
    assert len(layout.category) == 3 and pictures == {} and live._drawing is None
    live.close()
    draw_sweep(study)
    LiveStudy(study)()
    assert len(page(study)[1]) == 2  # stay as they are


def test_tensorboards_python_loader_follows_live(study):
    """Its other loader is looked at in test_tensorboard_browser.py."""
    write_sweep_events(study, curves_of(study), {"steps": picture("red")})
    loaders = {
        path: LiveAccumulator(str(path), event_file_active_filter=lambda timestamp: True)
        for path in (study / SWEEP, study / SWEEP / "adam")
    }

    def seen(path, tag):
        loaders[path].Reload()
        return [event.step for event in loaders[path].Tensors(tag)]

    assert seen(study / SWEEP / "adam", f"{GROUP}/steps") == [2, 3, 4, 5]
    make_run(study, "adam", 4, 9, seed=1, reached=False)
    make_run(study, "adam", 64, 9)
    write_sweep_events(study, curves_of(study), {"steps": picture("blue")})
    assert seen(study / SWEEP / "adam", f"{GROUP}/steps") == [3, 4, 5, 6]
    assert seen(study / SWEEP, "Figures/01 steps") == [0]
    assert seen(study / SWEEP, "custom_scalars__config__") == [0]
