"""The paper's own numbers: its tables of times and training accuracies.

Momentum at b = 1024 on CIFAR-10 is not in its tables; its text says that it was not reached.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).with_name("paper.csv")


@dataclass(frozen=True)
class PaperCell:
    """One cell of the paper's tables: an optimizer at one batch size."""

    batch_size: int
    reached: bool
    seconds: float | None
    accuracy: float | None  # a fraction, of the training data


def paper_cells(study: str) -> dict[str, list[PaperCell]]:
    """The cells of one of the paper's two studies by optimizer; of any other study, none."""
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
