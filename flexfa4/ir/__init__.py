"""The language of mods: a typed, hash-consed expression graph. Imports neither torch nor cutlass."""
from .dtypes import DType, promote
from .graph import Capture, Graph, Node, cast, const, node, topological
from .ops import Op

__all__ = ["Capture", "DType", "Graph", "Node", "Op", "cast", "const", "node", "promote", "topological"]
