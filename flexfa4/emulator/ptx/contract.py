"""Products that an assembler fuses with the addition that uses them: `mul` and `add`/`sub` without a rounding modifier may become
one fused multiply-add (PTX ISA, add: "may be optimized aggressively"), and ptxas does so. Which ones follows its output: the
product is used by such additions only, all of them in its basic block; of two products in one addition the first is fused."""

from bisect import bisect_right
from collections import defaultdict
from functools import lru_cache

PRODUCTS = {f"mul.{t}": t for t in ("f32", "ftz.f32", "f32x2", "ftz.f32x2", "f64")}
SUMS = {f"{op}.{t}": (op, t) for op in ("add", "sub") for t in PRODUCTS.values()}
# What each operand token encodes: w a register that is written (and may be read), r one that is read, - neither, L a target.
SLOTS = {"d": "w", "D": "w", "Q": "w", "p": "w", "pp": "ww", "d|p": "ww", "s": "r", "S": "r", "P": "r-", "a": "r--", "i": "-",
         "L": "L", "C": ""}


@lru_cache(maxsize=None)
def _slots(tokens: tuple[str, ...]) -> tuple[list[int], list[int], list[int]]:
    """Which numbers of an operand's encoding are registers that are written, registers that are read, and targets."""
    parts = []
    for token in tokens:
        if token[0] == "{":
            parts += [SLOTS[letter] for letter in token[1:-1]]
        elif token[0] == "T":
            parts += [SLOTS["a"], "r" * int(token[1:])]
        else:
            parts.append(SLOTS[token])
    return tuple([i for i, kind in enumerate("".join(parts)) if kind == wanted] for wanted in "wrL")


class _Flow:
    """Where registers are read and written, and the basic block of each instruction."""

    def __init__(self, ins: list, pool: list, table: dict):
        tokens = {number: tokens for rows in table.values() for number, tokens in rows}
        self.writes, self.reads = defaultdict(list), defaultdict(list)
        starts = {0}
        for n, (handler, _, _, at, _, _) in enumerate(ins):
            written, read, targets = _slots(tokens[handler])
            for slot in written:
                self.writes[pool[at + slot]].append(n)
            for slot in read:
                self.reads[pool[at + slot]].append(n)
            for slot in targets:
                starts |= {pool[at + slot], n + 1}
        self.starts = sorted(starts)

    def block(self, n: int) -> int:
        return bisect_right(self.starts, n)

    def written_between(self, register: int, first: int, last: int) -> bool:
        found = self.writes.get(register, ())
        return bisect_right(found, last) > bisect_right(found, first)


def _candidates(ins, pool, names, flow) -> dict:
    """Register -> number of the product that it holds, where every use could be fused."""
    found = {}
    for n, name in enumerate(names):
        kind = PRODUCTS.get(name)
        if kind is None or ins[n][1] >= 0:
            continue
        register, *factors = pool[ins[n][3] : ins[n][3] + 3]
        uses = flow.reads.get(register, ())
        if flow.writes[register] == [n] and uses and len(set(uses)) == len(uses) and all(
            SUMS.get(names[use], ("", ""))[1] == kind and ins[use][1] < 0 and use > n and flow.block(use) == flow.block(n)
            and not any(flow.written_between(factor, n, use) for factor in factors) for use in uses
        ):
            found[register] = n
    return found


def contract(ins: list, pool: list, names: list, table: dict) -> int:
    """Replaces such additions in place (the products stay, unused) and returns how many. ins, pool, names: see decode.Program."""
    if not any(name in PRODUCTS for name in names):
        return 0
    flow = _Flow(ins, pool, table)
    products = _candidates(ins, pool, names, flow)
    sums = [n for n, name in enumerate(names) if name in SUMS]
    for n in sums:
        _, first, second = pool[ins[n][3] : ins[n][3] + 3]
        if first in products:
            products.pop(second, None)
    fused = 0
    for n in sums:
        at = ins[n][3]
        target, first, second = pool[at : at + 3]
        op, kind = SUMS[names[n]]
        if first in products:
            product, other = products[first], second
        elif second in products:
            product, other, op = products[second], first, "add" if op == "add" else "from"
        else:
            continue
        factors = pool[ins[product][3] + 1 : ins[product][3] + 3]
        number = table[f"contract.{op}.{kind}"][0][0]
        ins[n] = (number, -1, 0, len(pool), 4, ins[n][5])
        pool += [target, *factors, other]
        fused += 1
    return fused
