"""Finds the tables of the special function unit in what an H200 computed, and writes flexfa4/emulator/core/special_tables.h.

    python benchmarks/micro_on_gpu.py FOLDER sweep          on the GPU
    python benchmarks/special_tables.py FOLDER              anywhere

The unit adds a + b x + c x^2 for each of 64 or 128 pieces of a binade, x the lower bits of the significand and the square cut
short (Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator", ARITH-17; the formulas around it are those
of the first unified GPUs, which envytools documents). tanh has pieces of its own in each binade from 2^-8 to 8. Each result then
bounds a + b x + c x^2 from both sides; for each piece the integers with the most room between all bounds are taken. Exits
with an error when a piece has none."""

import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests" / "emulator")]
TARGET = ROOT / "flexfa4" / "emulator" / "core" / "special_tables.h"
BINADE = 1 << 23
TURN = np.float32(0.15915494)  # what ptxas multiplies the argument of a sine with, rounding towards zero
TANH_SPLIT = {-8: 0, -7: 0, -6: 0, -5: 1, -4: 1, -3: 2, -2: 2, -1: 2, 0: 3, 1: 4, 2: 3}  # binade -> log2 of its pieces
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


def bounds_of_fraction(bits: np.ndarray, fraction: int):
    """Of a sum with `fraction` fraction bits, cut to the 24 bits of |result|; a small sum has fewer."""
    bits = bits.astype(np.int64) & 0x7FFFFFFF
    shift = fraction - 150 + (bits >> 23)
    up, down = np.maximum(shift, 0), np.maximum(-shift, 0)
    low = (bits & BINADE - 1 | BINADE) << up >> down
    return np.where(bits > 0, low, 0), np.where(bits > 0, low + (1 << up) - 1, 0)


def bounds_of_logarithm(bits: np.ndarray, below_one: bool):
    """Of a sum with 38 fraction bits: the logarithm of 1..2, or 1 + that of 0.5..1 (whose negative is complemented)."""
    low, high = bounds_of_fraction(bits, 36)
    if below_one:
        low, high = (1 << 36) - 1 - high, (1 << 36) - 1 - low
    return low << 2, (high << 2) + 3


def bounds_of_tanh(bits: np.ndarray, split: int):
    """Of the sums of a binade of 2^split pieces, for each value of the 17 + split bits of the significand that count."""
    low, high = (bound.reshape(1 << 17 + split, -1) for bound in bounds_of_fraction(bits, 41))
    return low.max(1), high.min(1)


def bounds_of_sine(sweeps: list):
    """Of the sums for 2^23 places in a quarter of a turn; no bound (low > high) where no input leads."""
    low, high, known = np.full(BINADE, -1), np.full(BINADE, 1 << 40), np.zeros(BINADE, bool)
    for quarters, inputs, bits in sweeps:
        turns = inputs.view(np.float32).astype(np.float64) * float(TURN)  # exact; the unit gets 24 bits of it
        turns = (turns.view(np.int64) >> 29 << 29).view(np.float64)
        whole = np.floor(turns * 2**25).astype(np.int64)
        odd = (whole >> 23) + quarters & 1
        place = np.where(odd, ~whole, whole) & BINADE - 1
        least, most = bounds_of_fraction(bits, 38)
        np.maximum.at(low, place, least)
        np.minimum.at(high, place, most)
        known[place] = True
    return np.where(known, low, 1), np.where(known, high, 0)


def piece(low: np.ndarray, high: np.ndarray, x: np.ndarray, square: np.ndarray, name: str) -> tuple[int, int, int]:
    """Integers with low <= a + b x + c square <= high for every point, as far from the bounds as there are."""
    guess = np.linalg.lstsq(np.stack([np.ones(len(x)), x, square], 1), (low + high) / 2, rcond=None)[0]

    def room(b, c, at):
        rest = b * x[at] + c * square[at]
        least, most = low[at] - rest, high[at] - rest
        return most.min() - least.max(), (most.min() + least.max()) // 2, least.argmax(), most.argmin()

    def most_room(at):
        best = None
        for c in range(round(guess[2]) - 24, round(guess[2]) + 25):
            first, last = round(guess[1]) - 200, round(guess[1]) + 200
            while last - first > 2:  # the room is concave in b
                third = (last - first) // 3
                p, q = first + third, last - third
                first, last = (p + 1, last) if room(p, c, at)[0] < room(q, c, at)[0] else (first, q)
            for b in range(first, last + 1):
                found = (*room(b, c, at)[:2], b, c)
                best = max(best or found, found)
        return best

    everything, some = slice(None), np.linspace(0, len(x) - 1, 512, dtype=int)
    while True:  # of all points the few that bind
        space, _, b, c = most_room(some)
        real, a, lower, upper = room(b, c, everything)
        if space < 0:
            raise SystemExit(f"{name}: no integers fit")
        if real == space:
            return int(a), b, c
        some = np.union1d(some, [lower, upper])


def table(name: str, parts: list, width: int, doubled: bool = False) -> str:
    """parts: bounds (low, high) of consecutive pieces; points without a bound have low > high and are left out."""
    rows = []
    for low, high in parts:
        for at in range(0, len(low), width):
            lo, hi, x = low[at : at + width], high[at : at + width], np.arange(width)
            square = rough_square(x << 1 if doubled else x)
            use = lo <= hi
            rows.append(piece(lo[use], hi[use], x[use], square[use], f"{name} piece {len(rows)}"))
    shown = [f"{{{a}, {b}, {c}}}," for a, b, c in rows]
    many = 3 if max(map(len, shown)) > 30 else 4
    lines = "".join(f"    {' '.join(shown[i : i + many])}\n" for i in range(0, len(rows), many))
    return f"constexpr Piece {name}[{len(rows)}] = {{\n{lines}}};\n"


def sines(sweeps: dict) -> list:
    """(quarters ahead of the sine, inputs, results) of the sweeps of sine and cosine."""
    from micro.arithmetic import ONE, SINE_BINADES

    found = []
    for quarters, op in enumerate(("sin", "cos")):
        inputs = np.arange(BINADE, dtype=np.uint32) + np.uint32(0x40800000)
        found.append((quarters, inputs, sweeps[f"sweep {op}.approx.ftz.f32 4..8"]))
    for binade in SINE_BINADES:
        bits = sweeps[f"sweep sin.approx.ftz.f32 binade {binade}"]
        start, step = ONE + (binade << 23), BINADE // len(bits)
        found.append((0, (start + step * np.arange(len(bits))).astype(np.uint32), bits))
    return found


def main(folder: Path) -> None:
    from micro_on_gpu import unpacked

    sweeps = {name: values for (name, _), values in unpacked(np.load(folder / "sweeps.npz")).items()}

    def get(op, binade):
        return sweeps[f"sweep {op}.approx.ftz.f32 {binade}"]

    ex2 = bounds_of_significand(get("ex2", "1..2"), 128, 15)
    rcp = bounds_of_significand(get("rcp", "1..2"), 126, 15)
    rsqrt = [bounds_of_significand(get("rsqrt", binade), 126, 16) for binade in ("1..2", "2..4")]
    above, below = bounds_of_logarithm(get("lg2", "1..2"), False), bounds_of_logarithm(get("lg2", "0.5..1"), True)
    lg2 = np.maximum(above[0], below[0]), np.minimum(above[1], below[1])
    for low, high in (rsqrt[0], lg2):  # 1 is a case of its own
        low[0], high[0] = 1, 0
    sqrt = [bounds_of_significand(get("sqrt", binade), 127, 17) for binade in ("1..2", "2..4")]
    tanh = [bounds_of_tanh(sweeps[f"sweep tanh.approx.f32 binade {binade}"], split) for binade, split in TANH_SPLIT.items()]
    first = [sum(1 << s for s in list(TANH_SPLIT.values())[:i]) for i in range(len(TANH_SPLIT))]
    text = HEAD + table("EX2", [ex2], 1 << 17) + table("RCP", [rcp], 1 << 16, doubled=True)
    text += table("RSQRT", rsqrt, 1 << 17) + table("LG2", [lg2], 1 << 17)
    text += table("SQRT", sqrt, 1 << 17) + table("SINE", [bounds_of_sine(sines(sweeps))], 1 << 17) + table("TANH", tanh, 1 << 17)
    text += "// Of the binades from 2^-8 on: the logarithm of the number of pieces, the first piece.\n"
    text += "".join(f"constexpr u8 {name}[{len(values)}] = {{{', '.join(map(str, values))}}};\n"
                    for name, values in (("TANH_SPLIT", TANH_SPLIT.values()), ("TANH_FIRST", first)))
    TARGET.write_text(text)
    print(f"{TARGET.name}: {len(re.findall('{-?[0-9]+, -?[0-9]+, -?[0-9]+}', text))} pieces")


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, 2))
    main(Path(sys.argv[1]))
