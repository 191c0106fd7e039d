"""How fast and how small runs are, beside other ways to train the same."""

import cbs_lightning  # noqa: F401 - before torch: it says how idle threads wait
