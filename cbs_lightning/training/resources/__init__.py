"""What a run takes of its machine: memory, threads, and how much work a step is."""
