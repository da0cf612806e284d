"""Every decision that shapes machine code, as frozen values that refuse to be wrong. Imports neither torch nor cutlass itself."""
from .barriers import Barrier, Reach, Role, Signal, show_reach, show_table
from .budget import BudgetError
from .build import WIDE_KEYS, Heads, RowLayout, plan_forward, row_layout, unpaired, wide_layout
from .forward import Sm90Forward, Sm100Forward, TiledForward
from .hoist import Hoisted, Level, hoist
from .plan import Plan
from .ranges import WIDE, Assumptions, integer_ranges
from .signature import STATISTICS, TMA_BYTES, Signature, signature_from_json
from .stand_in import Asked, stand_ins

__all__ = [
    "Asked", "Assumptions", "Barrier", "BudgetError", "Heads", "hoist", "Hoisted", "integer_ranges", "Level", "Plan",
    "plan_forward", "Reach", "Role", "row_layout", "RowLayout", "show_reach", "show_table", "Signal", "Signature",
    "signature_from_json", "Sm100Forward", "Sm90Forward", "stand_ins", "STATISTICS", "TiledForward", "TMA_BYTES", "unpaired",
    "WIDE", "WIDE_KEYS", "wide_layout",
]
