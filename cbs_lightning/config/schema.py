"""The typed configuration."""

AUTO = "auto"
