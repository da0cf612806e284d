"""From a mod in plain Python to a graph: tracing, capture of tensors, the cache of unchanged mods."""
from .cache import bind
from .fingerprint import Fingerprint, fingerprint, fingerprint_of
from .trace import trace

__all__ = ["Fingerprint", "bind", "fingerprint", "fingerprint_of", "trace"]
