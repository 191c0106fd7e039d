"""Runs on noisy quadratics as probes would see them, without an error: b* is known exactly."""

import numpy as np

from cbs_lightning.noise.record import NoiseRecord, Probe
from cbs_lightning.theory.noisy_quadratic import NoisyQuadratic

PROBES = 10

# Spectra from flat to steep; of each three learning rates, relative to the largest eigenvalue.
SPECTRA = {
    "1/i": 1 / np.arange(1, 101),
    "1/i^2": 1 / np.arange(1, 51) ** 2.0,
    "flat": np.ones(10),
    "two": np.r_[np.ones(5), np.full(50, 0.01)],
}
RATES = (0.05, 0.5)
SHARES = (0.3, 0.1, 0.03)  # of the first loss: the thresholds


def problems() -> list[tuple[str, NoisyQuadratic, float]]:
    """Those whose loss falls at every batch size that can reach the threshold at all."""
    found = []
    for name, spectrum in SPECTRA.items():
        for lr in RATES:
            problem = NoisyQuadratic(spectrum, lr)
            for share in SHARES:
                threshold = share * problem.loss(0, 1.0)
                if problem.steps(1e9, threshold) > 8:
                    found.append((f"{name}, lr {lr}, {share}", problem, threshold))
    return found


def quadratic_record(problem: NoisyQuadratic, batch_size: float, threshold: float) -> NoiseRecord:
    """Probes at the middles of equal intervals of log loss, as a run has them."""
    first = problem.loss(0, batch_size)
    edges = first * (threshold / first) ** (np.arange(PROBES + 1) / PROBES)
    times = [problem.steps(batch_size, edge) or 0.0 for edge in edges]
    losses = np.sqrt(edges[1:] * edges[:-1])
    probes = []
    for start, end, loss in zip(times, times[1:], losses, strict=False):
        step = problem.steps(batch_size, loss)
        assert step is not None
        a, c = problem.decrease(step, batch_size)
        probes.append(
            Probe(
                step=step,  # type: ignore[arg-type]  # between two steps, as K is
                samples=0,
                loss=float(loss),
                steps=end - start,
                gradient_norm2=1.0,
                noise_trace=problem.noise_trace,
                preconditioned_noise_trace=problem.noise_trace,
                metric_gradient_norm2=1.0,
                eta=problem.lr,
                a_trial=a,
                c_trial=c,
                a_hvp=a,
                c_hvp=c,
                l1_noise_scale=1.0,
            )
        )
    size: int = batch_size  # type: ignore[assignment]  # need not be whole either
    return NoiseRecord("", "sgd", "sgd", problem.lr, size, 0, threshold, "window", probes)
