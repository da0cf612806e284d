"""A fixture in which kernels that a process apart would compile arrive when a test says so, and those that calls wait for are
counted; nothing is compiled."""
import hashlib
from types import SimpleNamespace

import pytest

from flexfa4.plan import signature_from_json
from flexfa4.runtime import apart, kernels, store


class ByHand:
    """begun: the jobs, in the order in which their processes would have started; waited: (kind, signature) of each kernel that
    a call compiled itself."""

    def __init__(self, make):
        self.begun, self.waited, self._make, self._made = [], [], make, {}

    def launch(self, job) -> None:
        job._process = SimpleNamespace(returncode=None)
        self.begun.append(job)
        for kind, key, text in job.requests:
            self._made[key] = kind, signature_from_json(text)

    def make(self, kind: str, text, signature):
        if not store.usable() or not store.path_of(kernels._entry(kind, text, signature)).exists():
            self.waited.append((kind, signature))
        return self._make(kind, text, signature)

    def arrive(self) -> None:
        """All that was begun, and what waited for that."""
        while any(not job.ended for job in apart._jobs.values()):
            for job in self.begun:
                for key in job.keys:
                    store.path_of(key).touch()
                job._process.returncode = 0
            for job in list(apart._jobs.values()):
                job.look()

    def signatures(self) -> set:
        """Of the forward kernels that were to be compiled."""
        return {signature for kind, signature in self._made.values() if kind == "forward"}


@pytest.fixture
def by_hand(launches, monkeypatch, tmp_path):
    found = ByHand(kernels._make)
    monkeypatch.setattr(kernels, "_make", found.make)
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(store, "usable", lambda: True)
    monkeypatch.setattr(store, "linker", lambda: "ld")
    monkeypatch.setattr(store, "key_of", lambda what: hashlib.sha256(what.encode()).hexdigest()[:40])
    monkeypatch.setattr(apart.Job, "_launch", lambda job, held: found.launch(job))
    monkeypatch.setattr(apart, "_jobs", {})
    return found
