"""The paper's optimizers that torch does not have, and rules for the learning rate."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
