"""Many runs: grid, search, concurrency, GPUs, live table, SLURM."""
