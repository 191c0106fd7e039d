"""What a run leaves behind: the only place that knows how a run directory looks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
