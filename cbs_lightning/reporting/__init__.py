"""A study becomes figures, tables, an HTML report and TensorBoard pages. Never trains."""
