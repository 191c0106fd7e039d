"""Measuring the noise of gradients in a run, without changing it by a bit."""
