"""Which batch size should I use with this optimizer? Critical batch sizes, measured."""
