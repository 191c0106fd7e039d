"""The command `python -m cbs_lightning.reporting.report`."""

from cbs_lightning.reporting.command import for_every_study
from cbs_lightning.reporting.report import __doc__ as description
from cbs_lightning.reporting.report import write_report


def main() -> None:
    for_every_study(description, write_report)


if __name__ == "__main__":
    main()
