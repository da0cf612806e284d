"""Plain-text tables."""

from __future__ import annotations

from typing import Sequence


def render(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; a column whose every cell starts like a number is set flush right."""
    columns = list(zip(headers, *rows))
    widths = [max(map(len, column)) for column in columns]
    right = [
        bool(rows) and all(cell[:1] in "0123456789-+." or cell in ("nan", "inf") for cell in column[1:]) for column in columns
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right)).rstrip()

    return "\n".join([line(headers), "  ".join("-" * w for w in widths), *map(line, rows)])
