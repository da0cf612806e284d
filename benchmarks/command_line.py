"""The command lines of benchmarks that take no more than a word or two: --help says what they do, and nothing runs, and nothing
is written, for words that they do not take."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Sequence


def check(doc: str, words: range = range(1), options: Sequence[str] = (), first: Sequence[str] | None = None) -> None:
    """Of sys.argv. doc: of the script. words: how many there may be besides options; first: what the first of them may be, None
    for anything. Exits with status 0 after --help, and with 2 after saying what is wrong."""
    given = sys.argv[1:]
    if "-h" in given or "--help" in given:
        print(doc)
        raise SystemExit(0)
    plain = [word for word in given if not word.startswith("-")]
    unknown = [word for word in given if word.startswith("-") and word not in options]
    if unknown:
        said = f"unrecognized argument: {unknown[0]}"
    elif len(plain) not in words:
        said = f"{len(plain)} arguments given, expected {words[0] if len(words) == 1 else f'{words[0]} to {words[-1]}'}"
    elif plain and first is not None and plain[0] not in first:
        said = f"argument {plain[0]!r}: expected one of {', '.join(first)}"
    else:
        return
    print(f"{Path(sys.argv[0]).name}: {said}\n\n{doc}", file=sys.stderr)
    raise SystemExit(2)
