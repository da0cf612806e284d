"""Tables of docs/performance.md and docs/performance_blackwell.md that scripts write, between marks that name the script."""
from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (DOCS / "performance.md", DOCS / "performance_blackwell.md")
RESULTS = Path(__file__).resolve().parent / "results"


def publish(script: str, text: str) -> None:
    """Writes results/NAME.md of benchmarks/NAME.py, `script`, and `fill`s its place."""
    (RESULTS / script).with_suffix(".md").write_text(text + "\n")
    fill(script, text)


def fill(script: str, text: str) -> None:
    """Puts `text` between the marks of benchmarks/`script`. ValueError if the pages have not exactly one pair of them."""
    begin, end = marks(script)
    page, = (page for page in PAGES if begin in page.read_text())
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def marks(script: str) -> tuple[str, str]:
    """The lines before and after the table of benchmarks/`script`."""
    return f"<!-- table: begin (benchmarks/{script}) -->", f"<!-- table: end (benchmarks/{script}) -->"
