"""The paper's own numbers: its tables of times and training accuracies, and those in its text.

Momentum at b = 1024 on CIFAR-10 is not in the tables; the text says that it missed the threshold.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from cbs_lightning.theory import adam_lower_bound

TABLES = Path(__file__).with_name("cells.csv")
YOURS = " (yours)"  # after the variant of a user's own runs, beside published ones


@dataclass(frozen=True)
class PaperCell:
    """One cell of the paper's tables: an optimizer at one batch size."""

    batch_size: int
    reached: bool
    seconds: float | None
    accuracy: float | None  # a fraction, of the training data


@dataclass(frozen=True)
class PaperStudy:
    """One of the paper's two studies as repeated here, and what the paper says about b*."""

    name: str
    title: str
    data_size: int
    inputs: int  # numbers of an image, the paper's d
    threshold: float  # of the loss
    critical: dict[str, int]  # by optimizer, where the paper gives one
    printed_estimate: int  # Section 4's for Adam; its formula gives `estimate`
    figures: tuple[int, int]  # steps, SFO
    tables: dict[str, str]

    @property
    def cells(self) -> dict[str, list[PaperCell]]:
        return paper_cells(self.name)

    @property
    def estimate(self) -> float:
        """Section 4's lower bound of Adam's b*, with the numbers that it assumes."""
        assumed = {"sigma2": 1e-2, "eps": 1e-2, "lr": 1e-3, "beta1": 0.9}
        return adam_lower_bound(n=self.data_size, d=self.inputs, **assumed)


STUDIES = (
    PaperStudy(
        "cifar10_resnet20", "ResNet-20 on CIFAR-10", 50_000, 3072, 0.1,
        {"sgd": 4, "momentum": 8, "adam": 2048}, 1010, (1, 2),
        {"sgd": "Table 2", "momentum": "Table 3", "adam": "Tables 4 and 5"},
    ),
    PaperStudy(
        "mnist_resnet18", "ResNet-18 on MNIST", 60_000, 784, 0.01,
        {"momentum": 8, "adam": 1024}, 2380, (3, 4),
        {"sgd": "Table 6", "momentum": "Table 7", "adam": "Tables 8 and 9"},
    ),
)  # fmt: skip


def paper_cells(study: str) -> dict[str, list[PaperCell]]:
    """The cells of one of the paper's two studies, by optimizer; empty for any other study."""
    cells: dict[str, list[PaperCell]] = {}
    with TABLES.open(newline="") as file:
        for row in csv.DictReader(file):
            if f"{row['data']}_{row['model']}" != study:
                continue
            cell = PaperCell(
                batch_size=int(row["batch_size"]),
                reached=row["reached"] == "1",
                seconds=float(row["seconds"]) if row["seconds"] else None,
                accuracy=float(row["train_accuracy_percent"]) / 100
                if row["train_accuracy_percent"]
                else None,
            )
            cells.setdefault(row["optimizer"], []).append(cell)
    return cells
