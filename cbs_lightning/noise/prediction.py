"""What the probes of a run predict of its critical batch size."""

from dataclasses import replace

from cbs_lightning.noise.record import Estimate, NoiseRecord, Probe


def with_prediction(record: NoiseRecord) -> NoiseRecord:
    """The record with what its probes predict: b* = 2Σc/Σa, the paper's form (DESIGN §8)."""
    found = {way: _ratio(record.probes, way) for way in ("trial", "hvp")}
    best = next((way for way in ("trial", "hvp") if found[way].critical_batch is not None), "trial")
    scales = [each for each in record.probes if each.gradient_norm2 is not None]
    noise = sum((each.noise_trace or 0.0) * each.steps for each in scales)
    signal = sum((each.gradient_norm2 or 0.0) * each.steps for each in scales)
    return replace(
        record,
        critical_batch=found[best].critical_batch,
        reason=found[best].reason,
        estimator=best,
        b_simple=noise / signal if signal > 0 else None,
        estimators=found,
    )


def prediction_line(record: NoiseRecord) -> str:
    """For the end of a run."""
    if record.critical_batch is None:
        found = f"no prediction of b*: {record.reason}"
    else:
        interval = ""
        if record.interval is not None:
            low, high = record.interval
            interval = f" (90 % interval {low:.3g} to {high:.3g})"
        found = f"predicted b* = {record.critical_batch:.3g}{interval} at this learning rate"
    if record.b_simple is None:
        return found
    return f"{found}; B_simple = {record.b_simple:.3g}"


def _ratio(probes: list[Probe], way: str) -> Estimate:
    pairs = [
        (getattr(each, f"a_{way}"), getattr(each, f"c_{way}"), each.steps)
        for each in probes
        if getattr(each, f"a_{way}") is not None and getattr(each, f"c_{way}") is not None
    ]
    if not pairs:
        return Estimate(None, reason="a and c were not measured")
    a, c = (sum(each[at] * each[2] for each in pairs) for at in (0, 1))
    if a <= 0:
        reason = "a <= 0: a step of the full gradient would not lower the loss"
        return Estimate(None, reason=reason)
    if c <= 0:
        return Estimate(None, reason="c <= 0: noise would not raise the loss")
    return Estimate(2 * c / a)
