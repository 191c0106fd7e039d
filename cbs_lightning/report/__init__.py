"""Results become a page to browse: `python -m cbs_lightning.report outputs`. Never trains."""

from cbs_lightning.report.page import REPORT, write_page, write_report

__all__ = ["REPORT", "write_page", "write_report"]
