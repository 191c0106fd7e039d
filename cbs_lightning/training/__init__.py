"""One run: answered from its stored losses if possible, otherwise by training."""
