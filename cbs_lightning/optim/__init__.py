"""Optimizers that torch does not have, groups of parameters, and rules for the batch size."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
