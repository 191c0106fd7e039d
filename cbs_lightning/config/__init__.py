"""What a run is told: composed from YAML files, checked, and told apart by its hash."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
