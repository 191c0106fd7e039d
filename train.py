"""Train to a loss threshold: one run, or with -m a sweep. See README.md."""

from cbs_lightning.cli import main, train

__all__ = ["train"]

if __name__ == "__main__":
    main()
