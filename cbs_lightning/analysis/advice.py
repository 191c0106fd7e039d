"""How people type what would help them: with this project's keys, or in a Trainer of their own."""

from collections.abc import Iterable

from cbs_lightning.commands import option
from cbs_lightning.results.result import Result


class Advice:
    """Words for advice on some runs.

    Runs of the command line have keys such as `stop.loss`. A callback's runs have none: their user
    has a script with a Trainer, and options of the commands that analyse the runs.

    >>> from cbs_lightning.analysis.example import example_results
    >>> Advice(example_results()).next_run(8)
    'batch_size=8'
    """

    def __init__(self, runs: Iterable[Result]) -> None:
        self.has_keys = all(run.has_keys for run in runs)

    def budget(self, runs: Iterable[Result]) -> str:
        """What to raise so that these runs train longer."""
        if not self.has_keys:
            return "max_epochs or max_steps of the Trainer"
        keys = sorted({run.budget_key for run in runs} - {""})
        return " or ".join(f"stop.{key}" for key in keys or ("max_epochs", "max_steps"))

    @property
    def looser_threshold(self) -> str:
        """What asks stored losses for a higher threshold."""
        return "A looser stop.loss" if self.has_keys else f"A looser threshold ({option('loss')})"

    def stricter_threshold(self, threshold: float) -> str:
        """What a run has to be started with to train down to this threshold."""
        return f"stop.loss={threshold:g}" if self.has_keys else f"loss={threshold:g}"

    @property
    def lower_lr(self) -> str:
        return "a smaller optimizer.lr" if self.has_keys else "a smaller learning rate"

    def rule(self, name: str) -> str:
        return f"stop.rule={name}" if self.has_keys else option("rule", name)

    @property
    def smaller_window(self) -> str:
        return f"a smaller {'stop.window' if self.has_keys else option('window')}"

    def next_run(self, batch_size: int) -> str:
        return f"batch_size={batch_size}" if self.has_keys else f"b = {batch_size}"

    @property
    def more_seeds(self) -> str:
        if self.has_keys:
            return "Add seed=0,1,2 to see how much K varies."
        return "Repeat the runs with other seeds (seed_everything) to see how much K varies."
