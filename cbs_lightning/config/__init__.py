"""The configuration of a run: composed from YAML files, checked, and identified by a hash."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
