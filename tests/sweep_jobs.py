"""Jobs of sweeps that nobody runs."""

from typing import Any

from cbs_lightning.sweep.job import SweepJob


def sweep_job(**settings: Any) -> SweepJob:
    return SweepJob(**({"number": 1, "count": 1, "workers": 1, "started": 0.0} | settings))
