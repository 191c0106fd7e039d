"""Theorem 3.1 and Section 4 of the paper, and a model problem whose K is known exactly."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
