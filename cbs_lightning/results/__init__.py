"""What a run leaves behind: the only place that knows how a run directory looks."""
