"""A sweep's runs as jobs of a SLURM cluster."""
