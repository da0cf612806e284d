"""Tables of docs/performance.md that scripts write."""
from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
RESULTS = Path(__file__).resolve().parent / "results"


def publish(script: str, text: str) -> None:
    """Writes results/NAME.md of benchmarks/NAME.py, `script`, and `fill`s the page."""
    (RESULTS / script).with_suffix(".md").write_text(text + "\n")
    fill(script, text)


def fill(script: str, text: str) -> None:
    """Puts `text` between the marks of benchmarks/`script`. ValueError if the page has not exactly one pair of them."""
    begin, end = (f"<!-- table: {word} (benchmarks/{script}) -->" for word in ("begin", "end"))
    before, rest = PAGE.read_text().split(begin)
    _, after = rest.split(end)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
