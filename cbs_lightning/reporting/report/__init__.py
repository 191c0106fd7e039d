"""Writes the HTML report of a study. Never trains."""

from cbs_lightning.reporting.report.page import REPORT, write_page, write_report

__all__ = ["REPORT", "write_page", "write_report"]
