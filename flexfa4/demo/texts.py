"""Real English that every Python carries: the language reference behind `help()`."""

from __future__ import annotations

import re

from pydoc_data.topics import topics


def long_text() -> str:
    """All topics one after the other, about 460,000 characters."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def documents(count: int, least: int, most: int) -> list[str]:
    """The first `count` topics, by name, of `least` to `most` characters."""
    fitting = [topics[name] for name in sorted(topics) if least <= len(topics[name]) <= most]
    if len(fitting) < count:
        raise ValueError(
            f"this Python's language reference has {len(fitting)} topics of {least} to {most} characters, {count} wanted"
        )
    return fitting[:count]


def sentences(count: int) -> list[str]:
    """`count` different sentences of 3 to 80 words, taken at equal distances through the whole text."""
    prose = [p for p in re.split(r"\n\s*\n", long_text()) if re.search(r"[a-z]\.\s*$", p) and "   " not in p.strip()]
    found = [s for p in prose for s in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(p.split())) if 3 <= len(s.split()) <= 80]
    found = list(dict.fromkeys(found))
    if len(found) < count:
        raise ValueError(f"this Python's language reference gave {len(found)} sentences, {count} wanted")
    return [found[i * len(found) // count] for i in range(count)]
