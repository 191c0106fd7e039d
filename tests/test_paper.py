"""The paper's effect, measured. Minutes on a CPU: run by make test-slow."""

import pytest

from cbs_lightning.config.composition import compose
from cbs_lightning.results.result import Result, Status
from cbs_lightning.training.run import run

pytestmark = pytest.mark.slow


def digits(tmp_path, optimizer: str, batch_size: int) -> Result:
    return run(
        compose(
            [
                "experiment=digits",
                f"optimizer={optimizer}",
                f"batch_size={batch_size}",
                f"output_dir={tmp_path}",
            ]
        )
    )


def test_adams_sfo_has_an_interior_minimum(tmp_path):
    small, middle, large = (digits(tmp_path, "adam", b) for b in (4, 32, 1024))
    assert middle.sfo < 0.8 * small.sfo and middle.sfo < 0.8 * large.sfo
    assert small.steps > middle.steps > large.steps


def test_momentum_and_sgd_cannot_use_large_batches(tmp_path):
    small, middle = (digits(tmp_path, "momentum", b) for b in (8, 64))
    assert middle.sfo > 2 * small.sfo
    assert digits(tmp_path, "momentum", 1024).status is Status.EXHAUSTED
    assert digits(tmp_path, "sgd", 128).status is Status.EXHAUSTED


def test_adam_at_the_papers_critical_batch_size_on_cifar10(real_data, tmp_path):
    """The paper: K·b about 2^20 and a training accuracy of 97.21 %."""
    cfg = compose(
        [
            "experiment=cifar10_resnet20",
            "optimizer=adam",
            "batch_size=2048",
            f"data_dir={real_data}",
            f"output_dir={tmp_path}",
        ]
    )
    result = run(cfg)
    assert result.status is Status.REACHED
    assert 2**20 < result.sfo < 2**21
    assert result.accuracy == pytest.approx(0.9721, abs=0.005)
