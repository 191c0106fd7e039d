"""A few made-up results for the examples of this package's documentation."""

from cbs_lightning.results.result import SCHEMA_VERSION, Result, Status
from cbs_lightning.results.trajectory import RuleName

STEPS = {4: 1800, 8: 560, 16: 270, 32: 170, 64: 121, 128: 101, 256: 90}
DATA_SIZE, SECONDS_PER_STEP = 2048, 0.01


def example_results() -> list[Result]:
    """Runs of Adam with seven batch sizes, all of which reached a loss of 0.1.

    >>> [(run.batch_size, run.steps, run.sfo) for run in example_results()][:2]
    [(4, 1800, 7200), (8, 560, 4480)]
    """
    return [_result(batch_size, steps) for batch_size, steps in STEPS.items()]


def _result(batch_size: int, steps: int) -> Result:
    steps_per_epoch = DATA_SIZE // batch_size
    return Result(
        schema_version=SCHEMA_VERSION,
        status=Status.REACHED,
        ended=Status.REACHED,
        study="example",
        variant="adam",
        data="digits",
        model="resnet20",
        optimizer="adam",
        lr=1e-3,
        hyperparameters={},
        batch_size=batch_size,
        effective_batch_size=batch_size,
        micro_batch_size=None,
        seed=0,
        threshold=0.1,
        rule=RuleName.WINDOW,
        window=128,
        steps=steps,
        sfo=steps * batch_size,
        samples=steps * batch_size,
        steps_run=steps,
        epochs_run=steps / steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        data_size=DATA_SIZE,
        loss=0.1,
        accuracy=None,
        test_accuracy=None,
        seconds=steps * SECONDS_PER_STEP,
        seconds_per_step=SECONDS_PER_STEP,
        threads=1,
        device="cpu",
        config_hash="",
        versions={},
        waited=0.0,
    )
