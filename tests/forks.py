"""Runs of train.py in forked processes: killed, or with a disk that fails, at any point.

`python -m tests.forks` imports everything once and then, for every request on its standard input,
forks a child that runs `train.py`: no import is paid for twice, and every run is a real process.
"""

import errno
import json
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass
class Request:
    """What a child does, and what happens to it.

    A point is anything a program does to the files under `directory`: open one for writing,
    flush it to disk, rename, remove, make a folder. `kill_at` and `fail_at` count points from 1.
    """

    arguments: list[str]
    directory: str
    kill_after: float | None = None  # seconds
    kill_at: int | None = None
    fail_at: int | None = None
    fault: str = "ENOSPC"  # an errno's name; SHORT: half of a file, then ENOSPC
    lasting: bool = False  # whether every later point fails too
    memory: int | None = None  # bytes that the child may take beyond what it has
    signals: list[int] = field(default_factory=list)  # sent once `trains` is there
    trains: str = ""
    terminal: tuple[int, int] | None = None  # columns and lines; both outputs are then its screen's


@dataclass
class Ended:
    code: int  # negative: by that signal
    points: list[str]
    out: str
    err: str
    seconds: float


class Forks:
    """The parent's side; one child at a time."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks"],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, request: Request) -> Ended:
        assert self.server.stdin is not None and self.server.stdout is not None
        print(json.dumps(asdict(request)), file=self.server.stdin, flush=True)
        return Ended(**json.loads(self.server.stdout.readline()))

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()


@dataclass
class Points:
    """An audit hook that counts points, and kills the process or fails the call at one."""

    request: Request
    log: Path
    seen: list[str] = field(default_factory=list)

    def install(self) -> None:
        sys.addaudithook(self._audit)
        fsync = os.fsync

        def counted(descriptor: int) -> None:
            self._point("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink()), descriptor)
            fsync(descriptor)

        os.fsync = counted

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike | bytes):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._point("open", os.fsdecode(arguments[0]))
        elif event in ("os.rename", "os.remove", "os.mkdir"):
            self._point(event, os.fsdecode(arguments[0]))

    def _point(self, what: str, path: str, descriptor: int | None = None) -> None:
        if not Path(path).is_relative_to(self.request.directory):
            return
        self.seen.append(f"{what} {Path(path).name}")
        number = len(self.seen)
        request = self.request
        if number == request.kill_at:
            self._halve(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)
        first = request.fail_at
        if first is not None and (number == first or (request.lasting and number > first)):
            if request.fault == "SHORT":
                self._halve(descriptor)
            code = errno.ENOSPC if request.fault == "SHORT" else getattr(errno, request.fault)
            raise OSError(code, os.strerror(code), path)

    def _halve(self, descriptor: int | None) -> None:
        """What a crash makes of a file that has not reached the disk."""
        if descriptor is not None and Path(f"/proc/self/fd/{descriptor}").is_file():
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)


def _child(request: Request, scratch: Path) -> None:
    if request.terminal is not None:
        columns, lines = request.terminal
        termios.tcsetwinsize(1, (lines, columns))
        os.environ["TERM"] = "xterm-256color"
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
    else:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(scratch / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    from cbs_lightning.cli import one_line_errors
    from train import train

    if request.memory is not None:
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        limit = taken + request.memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    points = Points(request, scratch)
    points.install()
    sys.argv = ["train.py", *request.arguments]
    code: Any = 0
    try:
        with one_line_errors():
            train()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: who is killed meanwhile leaves the empty one.
    (scratch / "seen").write_text(json.dumps(points.seen))
    (scratch / "seen").replace(scratch / "points")
    os._exit(code or 0)


def _serve(request: Request, scratch: Path) -> Ended:
    (scratch / "points").write_text("[]")
    for name in ("out", "err"):
        (scratch / name).write_text("")
    started = time.monotonic()
    pid, screen = pty.fork() if request.terminal is not None else (os.fork(), None)
    if pid == 0:
        _child(request, scratch)
    if screen is not None:
        reader = threading.Thread(target=_read_screen, args=(screen, scratch / "out"))
        reader.start()
    for number in request.signals:
        while not Path(request.trains).exists():
            time.sleep(0.05)
        time.sleep(0.5)
        if screen is not None and number == signal.SIGINT:
            os.write(screen, b"\x03")  # to all in the terminal
        else:
            os.kill(pid, number)
    if request.kill_after is not None:
        time.sleep(request.kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if screen is not None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # idle workers, which hold the screen open for minutes
        reader.join()
    return Ended(
        os.waitstatus_to_exitcode(status),
        json.loads((scratch / "points").read_text()),
        (scratch / "out").read_bytes().decode(),  # with a terminal's carriage returns
        (scratch / "err").read_text(),
        time.monotonic() - started,
    )


def _read_screen(screen: int, out: Path) -> None:
    """A terminal that nobody reads makes its writers wait."""
    with out.open("wb") as file, suppress(OSError):  # which is how its end is told
        while shown := os.read(screen, 4096):
            file.write(shown)
    os.close(screen)


def main() -> None:
    import tempfile

    import cbs_lightning.reporting.live_study
    import cbs_lightning.sweep.report  # noqa: F401
    from cbs_lightning.config.composition import compose
    from cbs_lightning.training.run import run
    from tests.conftest import TINY

    with tempfile.TemporaryDirectory() as scratch:
        with redirect_stdout(StringIO()):  # whatever is loaded when first needed is loaded now
            run(compose([*TINY, "stop.max_steps=1", f"output_dir={scratch}"]))
        for line in sys.stdin:
            ended = _serve(Request(**json.loads(line)), Path(scratch))
            print(json.dumps(asdict(ended)), flush=True)


def moments(seed: int, longest: float) -> Any:
    """Random moments, in seconds from a process's start."""
    rng = random.Random(seed)
    while True:
        yield rng.uniform(0, longest)


def points_to_try(points: list[str], every: bool) -> list[int]:
    """The numbers of all points, or of the first and the last one of each kind."""
    numbers = range(1, len(points) + 1)
    if every:
        return list(numbers)
    kinds = [point.replace(".tmp", "").rstrip("0123456789.") for point in points]
    kinds = [" ".join(kind.split(".")[:3]) for kind in kinds]
    first = dict(zip(reversed(kinds), reversed(numbers), strict=True))
    last = dict(zip(kinds, numbers, strict=True))
    return sorted({*first.values(), *last.values()})


def ran(forks: Forks, arguments: list[str], output_dir: Path, **disturbance: Any) -> Ended:
    arguments = [*arguments, f"output_dir={output_dir}"]
    return forks.run(Request(arguments, str(output_dir), **disturbance))


if __name__ == "__main__":
    main()
