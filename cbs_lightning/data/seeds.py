"""Random numbers that depend only on the seed and the place in a run."""

import numpy as np
import torch


def seed_of(seed: int, *place: int) -> int:
    """The seed for one place, such as an epoch, of the run with this seed."""
    state = np.random.SeedSequence((seed, *place)).generate_state(1, np.uint64)
    return int(state[0]) & (2**63 - 1)


def generator(seed: int, *place: int) -> torch.Generator:
    """A CPU generator for one place of the run with this seed."""
    return torch.Generator().manual_seed(seed_of(seed, *place))
