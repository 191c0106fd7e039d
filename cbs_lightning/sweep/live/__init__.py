"""Shows the progress of a sweep's jobs while they run."""
