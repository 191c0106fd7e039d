"""How a run ends that was asked to stop."""

from cbs_lightning.results.result import Result


class Interrupted(Exception):  # noqa: N818 - it is not an error
    """A signal ended the run; everything up to then is stored."""

    def __init__(self, result: Result, signal_number: int) -> None:
        super().__init__(result, signal_number)
        self.result = result
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number
