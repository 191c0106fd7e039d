"""What probes measured in a run, and what that says of its critical batch size."""
