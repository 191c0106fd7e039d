"""The command `python -m cbs_lightning.reporting.figures`."""

from cbs_lightning.reporting.command import for_every_study
from cbs_lightning.reporting.figures import __doc__ as description
from cbs_lightning.reporting.study_files import write_study


def main() -> None:
    for_every_study(description, write_study)


if __name__ == "__main__":
    main()
