import errno
import json
import os

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbs_lightning.config.composition import compose
from cbs_lightning.reporting.paper import paper_cells
from cbs_lightning.results.result import Status, answers
from cbs_lightning.results.store import read_run
from cbs_lightning.sweep.sweep import Sweep
from cbs_lightning.sweep.sweeper import cells
from cbs_lightning.training.resources.threads import cores
from hydra_plugins.cbs_grid_sweeper import GridSweeper
from tests.conftest import TINY


def found(output_dir):
    """(optimizer, batch size, seed) of every stored result."""
    stored = [json.loads(path.read_text()) for path in output_dir.glob("*/*/result.json")]
    return sorted((run["optimizer"], run["batch_size"], run["seed"]) for run in stored)


def test_a_sweep_is_a_product_and_ends_with_a_table(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "optimizer=adam,sgd", "batch_size=128,256", "stop.loss=1.5",
        "stop.max_epochs=12", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert found(tmp_path) == [("adam", 128, 0), ("adam", 256, 0), ("sgd", 128, 0), ("sgd", 256, 0)]
    assert "4 jobs" in outcome.out and "[1/4]" in outcome.out and "[4/4]" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    for path in tmp_path.glob("*/*/result.json"):
        run = json.loads(path.read_text())
        (row,) = [
            r for r in rows if r[:2] == [run["optimizer"], str(run["batch_size"])] and len(r) > 5
        ]
        assert row[3] == run["status"]
        assert row[4] == ("-" if run["steps"] is None else f"{run['steps']:,}")
        assert row[5] == ("-" if run["sfo"] is None else f"{run['sfo']:,}")
        assert row[6] == f"{run['accuracy']:.2%}"
    assert {row[3] for row in rows if len(row) > 6 and row[6].endswith("%")} == {
        "reached", "exhausted"
    }  # fmt: skip
    assert "adam: use b = " in outcome.out and "Fewest gradients: b = " in outcome.out
    assert "sgd: no run reached 1.5" in outcome.out


def test_a_sweep_ends_with_its_figures_and_report(cli, tmp_path):
    arguments = ("-m", *TINY, "batch_size=128,256", "stop.loss=1.8", f"output_dir={tmp_path}")
    plain = cli(*arguments)
    assert plain.out.splitlines()[-1].endswith(
        f"to look at them: make figures report tensorboard OUTPUT_DIR={tmp_path}"
    )
    study = tmp_path / "digits_tiny"
    assert not (study / "report.html").exists()
    outcome = cli(*arguments, "report=true")
    assert outcome.code == 0, outcome.err
    told = outcome.out[outcome.out.index("adam: use b = ") :]
    for name in ("figures/contact_sheet.png", "recommendation.json", "summary.csv", "report.html"):
        assert str(study / name) in told and (study / name).exists()
    assert told.splitlines()[-1] == (
        f"  Runs: {study}; in TensorBoard: make tensorboard OUTPUT_DIR={tmp_path}"
    )


def test_tensorboard_has_the_curves_of_a_sweep_before_its_end(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("cbs_lightning.sweep.report._write", lambda *_: None)
    outcome = cli(
        "-m", *TINY, "batch_size=128,256", "stop.loss=1.8", f"output_dir={tmp_path}", "report=true"
    )
    assert outcome.code == 0 and "warning" not in outcome.out
    events = EventAccumulator(str(tmp_path / "digits_tiny" / "_sweep" / "adam"))
    events.Reload()
    shown = events.Scalars("Against log2 batch size/steps")
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/result.json")]
    expected = {7 if run["batch_size"] == 128 else 8: run["steps"] for run in results}
    assert {point.step: point.value for point in shown} == expected


def test_a_disk_that_fails_at_the_very_end_takes_one_line(cli, tmp_path, monkeypatch):
    def full(study, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(study.directory / "summary.csv"))

    monkeypatch.setattr("cbs_lightning.reporting.study_files.write_files", full)
    outcome = cli("-m", *TINY, "stop.max_epochs=1", f"output_dir={tmp_path}", "report=true")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: output_dir={tmp_path}: No space left on device")
    assert outcome.err.count("\n") == 1


def test_finished_runs_of_an_earlier_call_are_reused(cli, tmp_path, monkeypatch):
    arguments = ["-m", *TINY, "stop.max_epochs=1", f"output_dir={tmp_path}"]
    assert cli(*arguments, "seed=0,1").code == 0
    trained = []
    import cbs_lightning.training.run

    train = cbs_lightning.training.run.train

    def counting(cfg, *rest):
        trained.append(cfg.seed)
        return train(cfg, *rest)

    monkeypatch.setattr(cbs_lightning.training.run, "train", counting)
    outcome = cli(*arguments, "seed=0,1,2")
    assert trained == [2]
    assert outcome.out.count("already finished") == 2
    assert found(tmp_path) == [("adam", 256, seed) for seed in (0, 1, 2)]


def test_the_answer_is_of_the_whole_study(cli, tmp_path):
    given = ("-m", *TINY, "stop.loss=1.8", f"output_dir={tmp_path}")
    first = cli(*given, "batch_size=128,256")
    assert first.code == 0 and "earlier run" not in first.out
    second = cli(*given, "batch_size=512")
    assert second.code == 0, second.err
    assert "With 2 earlier runs of the study (adam: b = 128, 256):" in second.out
    assert "only b = 512 was run" not in second.out and "adam: use b = " in second.out
    other = cli(*given, "batch_size=512", "optimizer=adamw")
    assert "earlier run" not in other.out and "adamw: only b = 512 was run" in other.out


def test_a_failing_job_does_not_take_the_others_down(cli, tmp_path, seed_1_fails):
    outcome = cli("-m", *TINY, "seed=0,1,2", "stop.max_epochs=1", f"output_dir={tmp_path}")
    assert outcome.code == 1
    assert found(tmp_path) == [("adam", 256, 0), ("adam", 256, 2)]
    assert "[2/3] adam b=256 seed=1: failed: RuntimeError: the roof fell in" in outcome.out
    assert "failed" in outcome.out.split("[3/3]")[1]


def test_jobs_at_the_same_time_share_the_cores(cli, tmp_path, monkeypatch):
    given = ["-m", *TINY, "stop.max_epochs=1", "threads=null", f"output_dir={tmp_path}"]
    outcome = cli(*given, "seed=0,1,2", "jobs=auto")
    assert outcome.code == 0, outcome.err
    at_a_time = min(3, cores())
    assert outcome.out.startswith(f"3 jobs, {at_a_time} at a time (")
    assert found(tmp_path) == [("adam", 256, seed) for seed in (0, 1, 2)]
    for path in tmp_path.glob("*/*/result.json"):
        assert json.loads(path.read_text())["threads"] == cores() // at_a_time
    # What is known needs no workers, nor does a single run.
    launcher, launched = Sweep._launcher, []
    monkeypatch.setattr(
        Sweep,
        "_launcher",
        lambda self, runs, scratch: launched.append(runs) or launcher(self, runs, scratch),
    )
    again = cli(*given, "seed=0,1,2", "jobs=2")
    assert again.code == 0 and again.out.count("already finished") == 3 and launched == []
    more = cli(*given, "seed=0,1,2,3", "jobs=2")
    assert more.code == 0 and more.out.count("already finished") == 3 and launched == [1]
    (new,) = tmp_path.glob("*/*seed3*/result.json")
    assert json.loads(new.read_text())["threads"] == max(1, cores() // 2)


def test_a_worker_that_is_killed_does_not_take_the_others_down(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "model=deadly", "seed=0,1,2,3", "stop.max_epochs=1", "jobs=2",
        f"output_dir={tmp_path}",
    )  # fmt: skip
    assert outcome.code == 1
    assert "a worker process died" in outcome.out
    assert found(tmp_path) == [("adam", 256, seed) for seed in (0, 2, 3)]


def jobs(*arguments):
    """The (optimizer, batch size) cells that `python train.py -m <arguments>` would run."""
    found = settings_of(*arguments)
    return [(values["optimizer"], int(values["batch_size"])) for values in found]


def settings_of(*arguments: str) -> list[dict[str, str]]:
    """What each job of `python train.py -m <arguments>` would be given."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from cbs_lightning.config.composition import CONF_DIR

    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        fixed = [a for a in arguments if a.startswith("experiment=")]
        config = hydra_compose("config", fixed, return_hydra_config=True)
        sweeper = GridSweeper(config.hydra.sweeper.grid)
        sweeper.config_loader = GlobalHydra.instance().config_loader()
        jobs_given = sweeper.jobs(list(arguments))
    return [dict(override.split("=", 1) for override in job) for job in jobs_given]


@pytest.mark.parametrize("study", ["cifar10_resnet20", "mnist_resnet18"])
def test_the_papers_experiments_have_exactly_its_cells(study):
    largest = {  # exponents of two
        "cifar10_resnet20": {"sgd": 9, "momentum": 10, "adam": 16},
        "mnist_resnet18": {"sgd": 9, "momentum": 9, "adam": 14},
    }[study]
    expected = [(name, 2**i) for name, last in largest.items() for i in range(2, last + 1)]
    found = jobs(f"experiment={study}")
    assert sorted(found) == sorted(expected)
    paper = paper_cells(study)
    assert sorted(found) == sorted((name, c.batch_size) for name in paper for c in paper[name])


def test_the_papers_settings():
    cifar, mnist = compose(["experiment=cifar10_resnet20"]), compose(["experiment=mnist_resnet18"])
    for cfg, model, loss in ((cifar, "resnet20_authors", 0.1), (mnist, "resnet18", 0.01)):
        assert cfg.names.model == model and cfg.stop.loss == loss
        assert cfg.stop.max_epochs == 200 and cfg.stop.rule == "epoch"
        assert not any(cfg.data[key] for key in ("normalize", "augment", "replacement"))
    for optimizer, settings in {
        "sgd": {"lr": 1e-3, "weight_decay": 0},
        "momentum": {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0},
        "adam": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0},
    }.items():
        cfg = compose(["experiment=cifar10_resnet20", f"optimizer={optimizer}"])
        assert {key: cfg.optimizer[key] for key in settings} == settings


def test_the_demo_has_three_optimizers_and_nine_batch_sizes():
    assert len(jobs("experiment=digits")) == 27


def test_the_betas_vary_one_hyperparameter_at_a_time(cli, tmp_path):
    cells = settings_of("experiment=betas")
    assert len(cells) == 81 and {cell["seed"] for cell in cells} == {"0", "1", "2"}
    adam = [cell for cell in cells if cell["optimizer"] == "adam"]
    betas = {cell["optimizer.betas"] for cell in adam if "optimizer.betas" in cell}
    assert {"[0.99,0.999]", "[0.9,0.9999]", "[0.1,0.999]"} < betas
    for cell in adam:
        assert len({"optimizer.betas", "optimizer.lr"} & cell.keys()) == 1
    momentum = [cell for cell in cells if cell["optimizer"] == "momentum_ema"]
    assert {cell["optimizer.momentum"] for cell in momentum} >= {"0.1", "0.9", "0.99"}


def test_the_command_line_chooses_from_an_experiments_grid():
    assert len(jobs("experiment=cifar10_resnet20", "optimizer=sgd")) == 8
    assert jobs("experiment=cifar10_resnet20", "batch_size=2048") == [("adam", 2048)]


def test_all_that_the_command_line_names_is_run():
    assert jobs("experiment=cifar10_resnet20", "optimizer=sgd,adam", "batch_size=1024") == [
        ("sgd", 1024), ("adam", 1024)
    ]  # fmt: skip
    assert {cell[0] for cell in jobs("experiment=digits", "optimizer=adam,adamw")} == {
        "adam", "adamw"
    }  # fmt: skip
    assert sorted(jobs("experiment=digits", "optimizer=adam,adamw", "batch_size=256,300")) == [
        ("adam", 256), ("adam", 300), ("adamw", 256), ("adamw", 300)
    ]  # fmt: skip
    assert len(jobs("experiment=digits", "batch_size=48")) == 3
    assert len(jobs("experiment=cifar10_resnet20", "optimizer=adamw")) == 15


def test_without_a_grid_the_jobs_are_the_command_lines():
    command = {"seed": ["seed=0", "seed=1"], "batch_size": ["batch_size=4"]}
    assert cells([], command) == [("seed=0", "batch_size=4"), ("seed=1", "batch_size=4")]


def test_sweeping_a_hyperparameter_gives_a_variant_each(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "optimizer.lr=0.001,0.01", "stop.max_epochs=1", f"output_dir={tmp_path}"
    )
    assert outcome.code == 0
    variants = {json.loads(p.read_text())["variant"] for p in tmp_path.glob("*/*/result.json")}
    assert variants == {"adam", "adam lr=0.01"}


def test_several_thresholds_for_one_run(cli, tmp_path):
    outcome = cli(
        "-m", *TINY, "stop.loss=1.8,1.3", "seed=0,1", f"output_dir={tmp_path}",
        "jobs=auto", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("4 jobs, 2 at a time (hydra.launcher.n_jobs=2)\n")
    stored = [read_run(path.parent) for path in tmp_path.glob("*/*/result.json")]
    assert len(stored) == 2
    for run in stored:  # whichever was asked for last
        assert run.result.status is Status.REACHED
        (loosest, strictest) = answers(run, run.result.rule, run.result.window, [1.8, 1.3])
        assert loosest.steps < strictest.steps
    assert outcome.out.count("only b = 256 was run") == 2


def test_statuses_are_those_of_the_design():
    assert [str(status) for status in Status] == [
        "reached", "exhausted", "diverged", "abandoned", "interrupted", "failed"
    ]  # fmt: skip
