"""What a process that `apart` starts does: compiles kernels and puts them into the store. Its errors go to whoever waits."""
from __future__ import annotations

import gc
import sys
import warnings

from flexfa4.plan import signature_from_json

from . import compiler, store
from .kernels import Wanted, combine_of, forward_of


def main(given: dict) -> None:
    """given: `apart.Job`'s request: (kind, key, signature as text) of each kernel. Ends with an exception where one cannot be
    made, the last line of which is the reason."""
    gc.disable()
    warnings.simplefilter("ignore")
    for kind, key, text in given["wanted"]:
        signature = signature_from_json(text)
        wanted: Wanted = (forward_of if kind == "forward" else combine_of)(signature)
        if wanted.entry != key:
            sys.exit("flexfa4, its compiler or the CUDA driver is no longer the one that the process which asked has loaded")
        if not store.path_of(key).exists():
            exported = getattr(compiler, kind)(signature, runs_here=False)
            store.keep(key, lambda path: compiler.export(exported, path))
    (store.folder() / (given["wanted"][0][1] + store.LOCK)).unlink(missing_ok=True)
