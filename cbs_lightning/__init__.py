"""Which batch size should I use with this optimizer? Critical batch sizes, measured."""

import os

import lazy_loader

# Threads that spin while they wait slow each other down many times on a machine that is shared.
# It has to be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
