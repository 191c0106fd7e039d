"""The command `python -m cbs_lightning.figures`."""

from cbs_lightning.figures import __doc__ as description
from cbs_lightning.figures import write_study
from cbs_lightning.studies_command import for_every_study


def main() -> None:
    for_every_study(description, write_study)


if __name__ == "__main__":
    main()
