"""The conditions under which a study's runs were made, if they limit what can be compared.

The machine and the number of threads change only the last bits of the losses, which can still
change K in a long run. Seconds depend on them entirely, and on what else the machine was doing.
"""

from collections.abc import Iterable

from cbs_lightning.analysis.curves import Curve
from cbs_lightning.console import count_of
from cbs_lightning.results.result import MOVED, Result

MOST_NAMED = 3  # curves
BUSY = 0.1  # share of its time that a run may wait for a core and still be timed


def hardware(result: Result) -> str:
    """Processor, cores and device at the end of the run; the system's version hardly matters."""
    machine = (result.machine or "unknown").partition(MOVED)
    latest = machine[2].partition(" of ")[2] or machine[0]
    processor = latest.rpartition(", ")[0] or latest
    return processor if result.device == "cpu" else f"{processor}, {result.device}"


def made_on(result: Result) -> str:
    """Device, threads and machine of a run, and where it began if that was another one."""
    return f"{result.device}, {count_of(result.threads, 'thread')}, {result.machine or 'unknown'}"


def describe_conditions(results: Iterable[Result]) -> str:
    """A few words if the runs were made under different conditions; otherwise nothing."""
    runs = list(results)
    places = {hardware(run) for run in runs}
    threads = sorted({run.threads for run in runs})
    words = [f"on {count_of(len(places), 'machine')}"] if len(places) > 1 else []
    if len(threads) > 1:
        some = ", ".join(map(str, threads[:-1]))
        words.append(f"with {some} or {count_of(threads[-1], 'thread')}")
    moved = sum(run.moved for run in runs)
    if moved:
        words.append(f"{count_of(moved, 'run')} resumed elsewhere")
    return f"made {', '.join(words)}: K may differ a little" if words else ""


def why_seconds_differ(results: Iterable[Result]) -> str:
    """Why the runs' seconds cannot be compared; "" if they can, as far as is known."""
    runs = [run for run in results if run.seconds_per_step]
    if len({hardware(run) for run in runs}) > 1 or any(run.moved for run in runs):
        return "not comparable: not all on the same machine"
    busy = sum((run.waited or 0.0) > BUSY for run in runs)
    if busy:
        return f"not comparable: {busy} of {count_of(len(runs), 'run')} waited for a core"
    if any(run.waited is None for run in runs):
        return "comparable only if the machine was idle, which is not known"
    return ""


def describe_seconds(curves: Iterable[Curve]) -> str:
    """A sentence on curves whose seconds cannot be compared; "" if there are none."""
    told = [curve for curve in curves if sum(p.all_reached for p in curve.distinct_points) > 1]
    differ = [curve for curve in told if why_seconds_differ(curve.runs)]
    if not differ:
        return ""
    some = ", ".join(curve.variant for curve in differ)
    if len(differ) > MOST_NAMED:
        some = f"{len(differ)} of {count_of(len(told), 'variant')}"
    whose = "" if len(differ) == len(told) else f" of {some}"
    reason = why_seconds_differ(run for curve in differ for run in curve.runs)
    return f"Wall-clock times{whose} are {reason}."
