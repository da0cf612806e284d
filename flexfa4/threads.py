"""Locks, and attributes that are computed once, of which a child process of fork() gets none that is held: the thread that holds
it is not in the child, which would wait for ever."""
from __future__ import annotations

import os
import threading
from typing import Callable


def _free_after_fork(lock):
    reset = getattr(lock, "_at_fork_reinit", None)           # what the standard library resets its own by
    if reset is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
    return lock


def make_lock():
    """A `threading.Lock` that is free in a child process. Never freed itself: for a lock of a module."""
    return _free_after_fork(threading.Lock())


def make_rlock():
    """As `make_lock`, of `threading.RLock`."""
    return _free_after_fork(threading.RLock())


class cached_property:
    """`functools.cached_property` as it is since Python 3.12. Before, one lock for all objects of a class is held while the value
    is computed. Two threads may compute it, and the later one's is kept."""

    def __init__(self, function: Callable):
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance, owner: type | None = None):
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.function(instance)
        return value
