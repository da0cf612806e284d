"""Finds the tables of the special function unit in what an H200 computed, and writes flexfa4/emulator/core/special_tables.h.

    python benchmarks/micro_on_gpu.py FOLDER sweep          on the GPU
    python benchmarks/special_tables.py FOLDER              anywhere

The unit adds a + b x + c x^2 for each of 64 or 128 pieces of a binade, x the lower bits of the significand and the square cut
short (Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator", ARITH-17; the formulas around it are those
of the first unified GPUs, which envytools documents). Each result then bounds a + b x + c x^2 from both sides; for each piece the
integers with the most room between all bounds are taken. Exits with an error when a piece has none."""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
TARGET = ROOT / "flexfa4" / "emulator" / "core" / "special_tables.h"
BINADE = 1 << 23
HEAD = """// By benchmarks/special_tables.py from what an H200 computes for every significand: a, b, c of each piece of a binade.
#pragma once
#include "machine.h"

struct Piece {
    s64 a;
    s32 b, c;
};
"""


def rough_square(x: np.ndarray) -> np.ndarray:
    """x squared / 2^19 as special.h has it."""
    return sum((x >> i & 1) * (x >> (18 - i)) for i in range(2, 17)) >> 1


def bounds_of_significand(bits: np.ndarray, exponent: int, shift: int):
    """Of a sum whose bits above `shift` are the significand of the result; exponent: the biased one."""
    r = bits.astype(np.int64) - (exponent << 23) + BINADE
    return r << shift, ((r + 1) << shift) - 1


def bounds_of_logarithm(bits: np.ndarray, below_one: bool):
    """Of a sum with 38 fraction bits: the logarithm of 1..2, or 1 + that of 0.5..1 (whose negative is complemented)."""
    bits = bits.astype(np.int64)
    shift = 36 - 23 + (bits >> 23 & 255) - 127  # the significand's last bit among 36 fraction bits
    significand = bits & (BINADE - 1) | BINADE
    low = np.where(shift >= 0, significand << np.maximum(shift, 0), significand >> np.maximum(-shift, 0))
    high = low + (1 << np.maximum(shift, 0)) - 1
    if below_one:
        low, high = (1 << 36) - 1 - high, (1 << 36) - 1 - low
    return low << 2, (high << 2) + 3


def piece(low: np.ndarray, high: np.ndarray, x: np.ndarray, square: np.ndarray, name: str) -> tuple[int, int, int]:
    """Integers with low <= a + b x + c square <= high for every point, as far from the bounds as there are."""
    middle = (low + high) / 2
    guess = np.linalg.lstsq(np.stack([np.ones(len(x)), x, square], 1), middle, rcond=None)[0]
    best = None
    for c in range(round(guess[2]) - 5, round(guess[2]) + 6):
        lo, hi = low - c * square, high - c * square

        def room(b, lo=lo, hi=hi):
            rest = b * x
            least, most = (lo - rest).max(), (hi - rest).min()
            return most - least, (most + least) // 2

        first, last = round(guess[1]) - 200, round(guess[1]) + 200
        while last - first > 2:  # the room is concave in b
            third = (last - first) // 3
            p, q = first + third, last - third
            first, last = (p + 1, last) if room(p)[0] < room(q)[0] else (first, q)
        for b in range(first, last + 1):
            found = (*room(b), b, c)
            best = max(best or found, found)
    if best[0] < 0:
        raise SystemExit(f"{name}: no integers fit")
    return tuple(int(v) for v in best[1:])


def table(name: str, parts: list, width: int, doubled: bool = False) -> str:
    """parts: bounds (low, high) of consecutive binades; points without a bound have low > high and are left out."""
    rows = []
    for low, high in parts:
        for at in range(0, len(low), width):
            lo, hi, x = low[at : at + width], high[at : at + width], np.arange(width)
            square = rough_square(x << 1 if doubled else x)
            use = lo <= hi
            rows.append(piece(lo[use], hi[use], x[use], square[use], f"{name} piece {len(rows)}"))
    lines = [f"    {{{a}, {b}, {c}}}," for a, b, c in rows]
    joined = "\n".join(" ".join(line.strip() for line in lines[i : i + 4]) for i in range(0, len(lines), 4))
    return f"constexpr Piece {name}[{len(rows)}] = {{\n" + "\n".join("    " + line for line in joined.split("\n")) + "\n};\n"


def main(folder: Path) -> None:
    from micro_on_gpu import unpacked

    sweeps = {name: values for (name, _), values in unpacked(np.load(folder / "sweeps.npz")).items() if ".ftz.f32" in name}

    def get(op, binade):
        return sweeps[f"sweep {op}.approx.ftz.f32 {binade}"]

    ex2 = bounds_of_significand(get("ex2", "1..2"), 128, 15)
    rcp = bounds_of_significand(get("rcp", "1..2"), 126, 15)
    rsqrt = [bounds_of_significand(get("rsqrt", binade), 126, 16) for binade in ("1..2", "2..4")]
    above, below = bounds_of_logarithm(get("lg2", "1..2"), False), bounds_of_logarithm(get("lg2", "0.5..1"), True)
    lg2 = np.maximum(above[0], below[0]), np.minimum(above[1], below[1])
    for low, high in (rsqrt[0], lg2):  # 1 is a case of its own
        low[0], high[0] = 1, 0
    text = HEAD + table("EX2", [ex2], 1 << 17) + table("RCP", [rcp], 1 << 16, doubled=True)
    text += table("RSQRT", rsqrt, 1 << 17) + table("LG2", [lg2], 1 << 17)
    TARGET.write_text(text)
    print(f"{TARGET.name}: {text.count('{') - 9} pieces")


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, 2))
    main(Path(sys.argv[1]))
