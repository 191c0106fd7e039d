"""One run: its request is answered from what is stored, else by training."""
