"""From a mod in plain Python to a graph: tracing, capture of tensors, the cache of unchanged mods."""
from .cache import Entry, Parts, bind, parts_of, traced
from .fingerprint import Fingerprint, fingerprint, fingerprint_of
from .recorder import is_user_file, raised_at
from .trace import arity, describe, trace

__all__ = ["Entry", "Fingerprint", "Parts", "arity", "bind", "describe", "fingerprint", "fingerprint_of", "is_user_file",
           "parts_of", "raised_at", "trace", "traced"]
