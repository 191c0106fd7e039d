"""The command `python -m cbs_lightning.report`."""

from cbs_lightning.report import __doc__ as description
from cbs_lightning.report import write_report
from cbs_lightning.studies_command import for_every_study


def main() -> None:
    for_every_study(description, write_report)


if __name__ == "__main__":
    main()
