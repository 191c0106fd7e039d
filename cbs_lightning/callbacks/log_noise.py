"""What probes measured, for TensorBoard."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from cbs_lightning.noise.record import Probe
from cbs_lightning.results.events import EventWriter, replace_events

SUFFIX = ".noise"
DESCRIPTIONS = {
    "b_simple": "tr Σ / |G|², the simple noise scale",
    "metric_b_simple": "tr PΣ / GᵀPG, the same in the optimizer's metric",
    "l1_noise_scale": "(sum of deviations / ‖G‖₁)², of each coordinate's gradient",
    "gradient_norm2": "|G|², the squared norm of the mean gradient",
    "noise_trace": "tr Σ, the variance of a single sample's gradient",
    "preconditioned_noise_trace": "tr PΣ, the same in the optimizer's metric",
    "a_trial": "What a step of the full gradient lowers the loss by, from trial steps",
    "c_trial": "What noise takes of that, times the batch size, from trial steps",
    "a_hvp": "What a step of the full gradient lowers the loss by, from the Hessian",
    "c_hvp": "What noise takes of that, times the batch size, from the Hessian",
    "a_own": "What a step of the optimizer itself lowers the loss by, but for its noise",
    "c_own": "What noise takes of that, times the batch size, from its own steps",
    "local_critical_batch": "The most efficient batch size at this loss, from branches",
    "noise_level": "N of the level L∞ + N/b that branches come to",
}


def write_events(directory: Path, probes: Sequence[Probe]) -> None:
    """Write all of a run's probes, in place of those before.

    Without a restart, which would have readers drop the run's own curves. Whoever has read the
    earlier file has its points twice, at the same places. The file of curves begins with a restart:
    at the end of a run this one is to be written after it.
    """
    descriptions = {
        f"noise/{name}": f"{what}. Across: updates" for name, what in DESCRIPTIONS.items()
    }
    buffer = BytesIO()
    events = EventWriter(buffer, descriptions=descriptions)
    for probe in probes:
        values = {f"noise/{name}": getattr(probe, name) for name in DESCRIPTIONS}
        known = {tag: value for tag, value in values.items() if value is not None}
        events.scalars(known, probe.step)
    replace_events(directory, SUFFIX, buffer.getvalue())
