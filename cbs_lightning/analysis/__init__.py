"""A study becomes an answer."""
