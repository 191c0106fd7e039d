"""All figures of a study on one sheet."""

from io import BytesIO
from pathlib import Path

from PIL import Image

from cbs_lightning.files import write_atomically
from cbs_lightning.reporting.figures.style import STYLE, WIDTH

COLUMNS = 3
SMALLER = 2  # times as small as the figures themselves
COLUMN = round(WIDTH * STYLE["savefig.dpi"] / SMALLER)  # pixels


def write_contact_sheet(pictures: list[Path], path: Path) -> Path:
    """Write the PNG files, in order, in rows of three columns."""
    images = [Image.open(picture).convert("RGB").reduce(SMALLER) for picture in pictures]
    rows = _rows([-(-image.width // COLUMN) for image in images])
    heights = [max(images[number].height for number, _ in row) for row in rows]
    sheet = Image.new("RGB", (COLUMNS * COLUMN, sum(heights)), "white")
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for number, column in row:
            sheet.paste(images[number], (column * COLUMN, top))
        top += height
    content = BytesIO()
    sheet.save(content, "PNG")
    write_atomically(path, content.getvalue())
    return path


def _rows(spans: list[int]) -> list[list[tuple[int, int]]]:
    """The pictures' numbers with their first columns, in order; a wide one takes several."""
    rows: list[list[tuple[int, int]]] = []
    column = COLUMNS
    for number, span in enumerate(spans):
        span = min(span, COLUMNS)
        if column + span > COLUMNS:
            rows.append([])
            column = 0
        rows[-1].append((number, column))
        column += span
    return rows
