"""Turns a study into figures, tables, an HTML report and TensorBoard pages. Never trains."""
