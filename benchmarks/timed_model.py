"""A model that tells when it has made its first step and when its training ends."""

from typing import Any

from benchmarks.moments import ENDED, FIRST_STEP, print_moment
from cbs_lightning.models import ResNet20


class Timed(ResNet20):
    """The default model, for runs of one step: then a chunk is that."""

    def train_chunk(self, *arguments: Any) -> Any:
        steps = super().train_chunk(*arguments)
        print_moment(FIRST_STEP)
        return steps

    def on_train_end(self) -> None:
        print_moment(ENDED)
