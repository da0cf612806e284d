"""Runs the sections of the demo and sums up. One check that fails, or a section that breaks, fails the run."""

from __future__ import annotations

import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Callable

from .checks import Checks


def _gallery(checks: Checks, folder: Path) -> str:
    return import_module(".gallery", __package__).run(checks)


def _pictures(checks: Checks, folder: Path) -> str:
    return import_module(".pictures", __package__).run(folder)


def _language(checks: Checks, folder: Path) -> str:
    return import_module(".language_model", __package__).run(checks)


def _sentences(checks: Checks, folder: Path) -> str:
    return import_module(".sentences", __package__).run(checks)


# Imported when reached: each section needs packages that the others do not.
SECTIONS: dict[str, tuple[str, Callable[[Checks, Path], str]]] = {
    "gallery": ("The gallery", _gallery),
    "pictures": ("Pictures", _pictures),
    "language": ("A causal language model: SmolLM2-135M", _language),
    "sentences": ("A sentence encoder: all-MiniLM-L6-v2, packed without padding", _sentences),
}


def run(sections: tuple[str, ...], folder: Path) -> int:
    """Prints each section and the summary; 0 when every check passed and every section ran, else 1."""
    checks, broken, began = Checks(), [], time.perf_counter()
    for name in sections:
        title, section = SECTIONS[name]
        section_began = time.perf_counter()
        print(f"\n== {title}\n", flush=True)
        try:
            print("\n" + section(checks, folder), flush=True)
        except Exception:
            traceback.print_exc()
            broken.append(name)
        print(f"\n({time.perf_counter() - section_began:.1f} s)", flush=True)
    print(f"\n== Summary, {time.perf_counter() - began:.0f} s\n")
    print(checks.summary() if checks.done or sections != ("pictures",) else "pictures drawn")
    for name in broken:
        print(f"section {name!r} broke off with an error, shown above")
    passed = not broken and (checks.passed or sections == ("pictures",))
    print("PASSED" if passed else "FAILED")
    return 0 if passed else 1
