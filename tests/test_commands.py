"""Commands that are printed work where they are printed."""

from pathlib import Path

from cbs_lightning import commands

ROOT = Path(__file__).parents[1]


def test_commands_are_those_that_work_in_the_current_directory(tmp_path, monkeypatch):
    def printed() -> tuple[str, str]:
        return commands.train_command(), commands.study_commands(Path("outputs"), "figures")

    monkeypatch.chdir(ROOT)
    assert printed() == ("python train.py", "make figures")
    assert commands.install_command("slurm") == "pip install '.[slurm]'"
    monkeypatch.chdir(tmp_path)
    assert commands.install_command("slurm") == f"pip install '{ROOT}[slurm]'"
    where = f"OUTPUT_DIR={tmp_path}/outputs"
    assert printed() == (f"python {ROOT}/train.py", f"make -C {ROOT} figures {where}")
    monkeypatch.setattr(commands, "IN_CLONE", False)
    assert printed() == ("cbs-train", "cbs-figures")
    assert commands.install_command("slurm") == "pip install 'cbs_lightning[slurm]'"
    both = commands.study_commands(Path("a b"), "figures", "report")
    assert both == "cbs-figures 'a b'; cbs-report 'a b'"
