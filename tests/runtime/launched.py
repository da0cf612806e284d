"""A fixture that lets flex_attention take a kernel for CPU tensors, which notes what it is launched with."""
import pytest

from flexfa4.runtime import engine, kernels, lists, repeat, standin


TABLES = (repeat._known, repeat._ready, repeat._hints, kernels._found, kernels._functions, kernels._entries, standin._stood_in)


@pytest.fixture
def launches(monkeypatch):
    """What was launched: (name of the kernel, arguments)."""
    noted = []

    def make(kind, text, signature):
        return lambda *arguments: noted.append((kind, signature, arguments))

    monkeypatch.setattr(engine, "architecture", lambda device: "sm90")
    for module in (kernels, lists):
        monkeypatch.setattr(module, "workers_of", lambda device: 4)
    monkeypatch.setattr(kernels, "stream_of", lambda device: 0)
    monkeypatch.setattr(kernels, "_make", make)
    monkeypatch.setenv("FLEXFA4_KERNEL_CACHE", "off")        # nothing is compiled apart
    for table in TABLES:
        table.clear()
    yield noted
    for table in TABLES:
        table.clear()
