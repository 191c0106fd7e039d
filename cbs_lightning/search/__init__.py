"""Where to run next, and when b* is known: pure functions of the runs so far."""
