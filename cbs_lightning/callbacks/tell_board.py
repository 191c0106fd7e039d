"""How far a job of a sweep is, told to the sweep's board."""

from typing import Any

from cbs_lightning.callbacks.progress import FollowProgress
from cbs_lightning.callbacks.stop import StopAtThreshold
from cbs_lightning.sweep.live.board import Board

EVERY_SECONDS = 0.5


class TellBoard(FollowProgress):
    def __init__(self, board: Board, job: int, stop: StopAtThreshold, max_steps: int) -> None:
        super().__init__(stop, max_steps, EVERY_SECONDS)
        self.board = board
        self.job = job

    def on_train_start(self, *arguments: Any) -> None:
        super().on_train_start(*arguments)
        self.show()

    def on_train_end(self, *_: Any) -> None:
        self.show()

    def show(self) -> None:
        self.board.tell(
            self.job,
            steps=self.steps,
            max_steps=self.max_steps,
            steps_per_epoch=self.stop.rule.steps_per_epoch,
            first_loss=self.first_loss,
            loss=self.loss,
            seconds_left=self.seconds_left,
        )
