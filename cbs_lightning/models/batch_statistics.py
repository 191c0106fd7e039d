"""BatchNorm's statistics for weights that were not trained themselves, such as an average."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Statistics = dict[_BatchNorm, dict[str, Tensor]]


def estimate_statistics(net: nn.Module, batches: Iterable[Tensor]) -> Statistics:
    """Set the statistics to their means over these batches; return what they were."""
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    before = {norm: {k: v.clone() for k, v in norm.state_dict().items()} for norm in norms}
    momenta = {norm: norm.momentum for norm in norms}
    modes = {module: module.training for module in net.modules()}
    net.eval()  # all but these: dropout is off where the statistics are used
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # a mean over all
    with torch.no_grad():
        for images in batches if norms else ():
            net(images)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    for module, mode in modes.items():
        module.training = mode
    return before


def restore_statistics(before: Statistics) -> None:
    for norm, state in before.items():
        norm.load_state_dict(state)
