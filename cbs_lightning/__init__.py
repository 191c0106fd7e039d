"""Which batch size should I use with this optimizer? Critical batch sizes, measured."""

import os

# Threads that spin while they wait slow each other down many times on a machine that is shared.
# It has to be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
