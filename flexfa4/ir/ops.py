"""The closed set of operations, one meaning a line, and the typing rule of each. Standard library only.

Every table that gives ops a meaning (evaluate, interval, derivative, emit) has one row for every member of `Op`; a test says
that no cell is empty. Tracing inserts casts, so that all operands of an arithmetic op have the result's type: the rules below
need no promotion. Semantics are those of torch on tensors of the node's dtype.
"""
from __future__ import annotations

from enum import Enum, auto


class Op(Enum):
    # leaves
    SCORE = auto()     # the scaled score q.k * scale, before the mod
    B = auto()         # batch index, i64
    H = auto()         # query head index, i64
    Q = auto()         # query position, i64
    KV = auto()        # key position, i64
    OUT = auto()       # out_mod only: one normalised output element, f32
    LSE = auto()       # out_mod only: natural-log LSE of the row, f32
    D = auto()         # out_mod only: column of the output, i64
    CONST = auto()     # attr: a static Python number (0, 1, and the operand of //, %, shifts, small integer powers)
    SLOT = auto()      # attr: index of a runtime scalar (a literal in the mod)
    LOAD = auto()      # attr: index of a captured tensor; args: one i64 index a dimension; negative indices wrap
    # arithmetic: (T, T) -> T
    ADD = auto()
    SUB = auto()
    MUL = auto()
    DIV = auto()       # floats only; true division
    FLOORDIV = auto()  # towards minus infinity, ints and floats
    MOD = auto()       # Python's: sign of the divisor
    TRUNCDIV = auto()  # towards zero, ints and floats
    FMOD = auto()      # C's remainder: sign of the dividend
    POW = auto()       # floats: any exponent; ints: exponent >= 0
    MIN = auto()       # NaN propagates, as torch.minimum; attr, on floats: which operand has the gradient where they are equal
    MAX = auto()       # as MIN
    # bits: ints and bools, except shifts: ints
    AND = auto()
    OR = auto()
    XOR = auto()
    NOT = auto()       # ~ on ints, logical on bools
    SHL = auto()
    SHR = auto()       # arithmetic on signed types
    # comparisons: (T, T) -> bool
    LT = auto()
    LE = auto()
    EQ = auto()
    NE = auto()
    # selection and casts
    WHERE = auto()     # (bool, T, T) -> T
    CAST = auto()      # to the node's dtype; float -> int truncates, -> bool is != 0
    # unary: T -> T
    NEG = auto()
    ABS = auto()
    SIGN = auto()
    FLOOR = auto()
    CEIL = auto()
    ROUND = auto()     # half to even
    TRUNC = auto()
    EXP = auto()
    EXP2 = auto()
    EXPM1 = auto()
    LOG = auto()
    LOG2 = auto()
    LOG10 = auto()
    LOG1P = auto()
    SQRT = auto()
    RSQRT = auto()
    RECIPROCAL = auto()
    TANH = auto()
    SIGMOID = auto()
    ERF = auto()
    SIN = auto()
    COS = auto()
    TAN = auto()
    ATAN = auto()
    ATAN2 = auto()     # (T, T) -> T
    ISNAN = auto()     # float -> bool
    ISINF = auto()     # float -> bool

    # Members are singletons, and tables keyed by them are read at every step of a trace: Enum's own hash is a call into Python.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.name.lower()


INDEX_LEAVES = frozenset({Op.B, Op.H, Op.Q, Op.KV, Op.D})
FLOAT_LEAVES = frozenset({Op.SCORE, Op.OUT, Op.LSE})
LEAVES = INDEX_LEAVES | FLOAT_LEAVES | {Op.CONST, Op.SLOT}

COMPARISONS = frozenset({Op.LT, Op.LE, Op.EQ, Op.NE})
COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR, Op.EQ, Op.NE})
BITWISE = frozenset({Op.AND, Op.OR, Op.XOR})
SHIFTS = frozenset({Op.SHL, Op.SHR})
ARITHMETIC = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.MOD, Op.TRUNCDIV, Op.FMOD, Op.POW, Op.MIN, Op.MAX})
FLOAT_BINARY = frozenset({Op.DIV, Op.ATAN2})
NUMBER_UNARY = frozenset({Op.NEG, Op.ABS, Op.SIGN})
FLOAT_UNARY = frozenset({
    Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SQRT, Op.RSQRT,
    Op.RECIPROCAL, Op.TANH, Op.SIGMOID, Op.ERF, Op.SIN, Op.COS, Op.TAN, Op.ATAN,
})
FLOAT_TESTS = frozenset({Op.ISNAN, Op.ISINF})
