"""The resources of a run: memory, threads, and the amount of work in a step."""
