"""What a graph means, on torch tensors: the definition every engine is tested against, and the CPU engine's evaluator."""
from .dtypes import dtype_of, torch_dtype
from .poison import evaluate_checked, lookup_error
from .program import Program, evaluate, program

__all__ = ["Program", "dtype_of", "evaluate", "evaluate_checked", "lookup_error", "program", "torch_dtype"]
