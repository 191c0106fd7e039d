"""Turns the runs of a study into an answer."""
