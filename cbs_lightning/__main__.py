"""`python -m cbs_lightning` is `cbs-train`."""

from cbs_lightning.cli import main

if __name__ == "__main__":
    main()
