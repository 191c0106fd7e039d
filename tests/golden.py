"""The figures of a small fixed study, to compare with: `python -m tests.golden` draws them anew."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from cbs_lightning.analysis.study import read
from cbs_lightning.reporting.figures import figures_of
from tests.studies import make_full_study, make_run, make_searched_study

GOLDEN = Path(__file__).with_name("golden")
DPI = 80


def figures(directory: Path) -> Iterator[tuple[str, Figure]]:
    """All figures of a full study, and those that a study of the paper or a search differs in."""
    make_full_study(directory / "full")
    for batch_size, epochs in ((4, 9), (8, 7), (64, 8), (2048, 30)):
        make_run(directory / "cifar10_resnet20", "adam", batch_size, epochs, falling=True)
    make_run(directory / "cifar10_resnet20", "sgd", 64, 9, falling=True, reached=False)
    make_searched_study(directory / "searched")
    studies = {"full": None, "cifar10_resnet20": ("sfo", "paper"), "searched": ("sfo", "steps")}
    for name, wanted in studies.items():
        study, _ = read(directory / name)
        assert study is not None
        for figure_name, figure in figures_of(study):
            if wanted is None or figure_name in wanted:
                yield f"{name}_{figure_name}", figure


def save(figure: Figure, path: Path) -> None:
    with mpl.rc_context({"savefig.dpi": DPI}):
        figure.savefig(path, metadata={"Software": None})


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for name, figure in figures(Path(directory)):
            save(figure, GOLDEN / f"{name}.png")
            print(GOLDEN / f"{name}.png", file=sys.stderr)


if __name__ == "__main__":
    main()
