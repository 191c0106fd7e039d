"""Random numbers that depend on the seed and their place in a run, and on nothing before them."""

import numpy as np
import torch


def generator(seed: int, *place: int) -> torch.Generator:
    """A CPU generator for one place, such as an epoch, of the run with this seed."""
    state = np.random.SeedSequence((seed, *place)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) & (2**63 - 1))
