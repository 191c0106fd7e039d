"""How far a sweep's jobs are, shown while they run."""
