import torch

from cbs_lightning.callbacks import TrajectoryRecorder
from cbs_lightning.models.chunks import MARK


def chunk(*losses: float) -> dict:
    count = len(losses)
    return {
        "loss": torch.tensor(losses),
        "correct": torch.arange(count),
        "size": [8] * count,
        "mark": MARK,
    }


def record(recorder: TrajectoryRecorder, *losses: float) -> None:
    recorder.on_train_batch_start()
    recorder.on_train_batch_end(None, None, chunk(*losses))
    recorder.on_train_epoch_end()


def test_a_trajectory_ends_with_the_first_loss_that_is_not_finite():
    recorder = TrajectoryRecorder()
    record(recorder, 3.0, 2.0)
    record(recorder, 1.0, float("nan"), 5.0)
    record(recorder, 4.0)
    assert recorder.trajectory.loss[:3].tolist() == [3, 2, 1]
    assert len(recorder.trajectory) == recorder.trajectory.first_non_finite() == 4
    # The time was spent on six steps.
    assert recorder.seconds_per_step == recorder.seconds / 6


def test_only_training_is_timed():
    recorder = TrajectoryRecorder()
    record(recorder, 1.0)
    seconds = recorder.seconds
    recorder.fetch()  # between two epochs
    assert recorder.seconds == seconds > 0


def test_state_can_be_saved_and_loaded():
    recorder, loaded = TrajectoryRecorder(), TrajectoryRecorder()
    record(recorder, 3.0, 2.0)
    loaded.load_state_dict(recorder.state_dict())
    record(recorder, 1.0)
    record(loaded, 1.0)
    assert loaded.trajectory.loss.tolist() == [3, 2, 1]
    assert loaded.trajectory.correct.dtype == recorder.trajectory.correct.dtype
    assert loaded.seconds > 0
