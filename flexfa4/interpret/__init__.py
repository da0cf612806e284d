"""What a graph means, on torch tensors: the definition every engine is tested against, and the CPU engine's evaluator."""
from .poison import evaluate_checked, lookup_error
from .program import Program, evaluate, program

__all__ = ["Program", "evaluate", "evaluate_checked", "lookup_error", "program"]
