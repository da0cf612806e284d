"""What happens, while a mod is traced, to torch calls that meet no traced value: constants, metadata, derived tensors,
randomness, writes, values read on the host."""
from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from .recorder import Recorder, capture_name, refuse
from .tracer import METHODS, Symbolic, refuse_contains

RANDOM = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "normal", "multinomial",
    "poisson", "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
    "gumbel_softmax", "uniform", "exponential", "geometric", "cauchy", "log_normal", "random", "rrelu", "binomial", "manual_seed",
    "native_dropout", "_fused_dropout", "seed", "initial_seed", "set_rng_state", "_sample_dirichlet", "_standard_gamma",
})
UNSET = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
HOST_READS = frozenset({
    "item", "tolist", "numpy", "__int__", "__float__", "__bool__", "__index__", "__complex__", "equal", "allclose", "is_nonzero",
    "__contains__", "__array__",
})
# Reads whose result does not change with a small change of the values: their derivative is 0.
NO_GRADIENT = frozenset({"__int__", "__bool__", "__index__", "equal", "allclose", "is_nonzero", "__contains__"})
# Properties of a captured tensor, by what they hang on: what every guard of a tensor holds; its shape and device; and the rest
# (values, gradients, layout), which no guard follows.
FIXED = frozenset({"dtype", "ndim", "dim", "ndimension", "is_floating_point", "is_complex", "finfo", "iinfo", "result_type",
                   "itemsize", "element_size", "__hash__", "layout", "is_sparse", "is_nested", "is_quantized"})
SHAPED = frozenset({"shape", "size", "numel", "nelement", "__len__", "nbytes", "device", "is_cuda", "is_cpu", "is_meta",
                    "get_device"})
LOOSE = frozenset({"requires_grad", "is_leaf", "grad_fn", "grad", "retains_grad", "stride", "is_contiguous", "storage_offset",
                   "data_ptr", "_version", "names", "is_pinned", "is_shared", "is_inference", "is_conj", "is_neg", "has_names",
                   "__repr__", "__format__", "__str__", "__dir__", "_backward_hooks", "output_nr", "dim_order"})
CREATE_SCALAR = frozenset({"tensor", "scalar_tensor", "full", "zeros", "ones", "as_tensor"})


def refuse_random(name: str):
    return refuse(f"{name} draws random numbers in a mod: the backward pass would draw other ones",
                  "a captured tensor of random numbers drawn before the call (with a seed of its own)")


def _drops_nothing(name: str, args, kwargs) -> bool:
    """A dropout outside training."""
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return "dropout" in name and not training


def refuse_unset(name: str):
    return refuse(f"{name} in a mod: its contents are not set, so no two calls need agree", "torch.zeros, or a captured tensor")


class TracingMode(TorchFunctionMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for t in types:
            if issubclass(t, Symbolic):
                return METHODS["dispatch"](func, args, kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = func.__self__.__name__
        elif name == "__set__":
            raise self._write(func.__self__.__name__, args)
        if name in FIXED or name in SHAPED or name in LOOSE:
            self.recorder.shape_read |= name in SHAPED
            self.recorder.loose |= name in LOOSE
            return func(*args, **kwargs)
        return self._eager(func, name, args, kwargs)

    def _eager(self, func, name, args, kwargs):
        if name in CREATE_SCALAR:
            made = self._scalar(name, args, kwargs)
            if made is not None:
                return made
        if name.rstrip("_") in RANDOM and not _drops_nothing(name, args, kwargs):
            raise refuse_random(name)
        if name in UNSET:
            raise refuse_unset(name)
        if name == "__contains__" and isinstance(args[1], Symbolic):
            raise refuse_contains()
        if name in HOST_READS:
            self._host_read(name, args)
            return func(*args, **kwargs)
        writes = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or (
            name.startswith("__i") and name not in ("__invert__", "__index__", "__int__", "__iter__"))
        if writes and id(args[0]) not in self.recorder.writable:
            raise self._write(name, args)
        if kwargs.get("out") is not None:
            raise self._write(f"{name}(out=...)", (kwargs["out"],))
        result = func(*args, **kwargs)
        self._note(result, args)
        return result

    def _host_read(self, name: str, args) -> None:
        """A captured tensor's values become numbers of the graph, or decide what it is. Of a trainable one, that is right for
        what has no gradient (a decision, a rounding) and would silently lose it elsewhere."""
        self.recorder.folded = True
        if name in NO_GRADIENT or not self.recorder.differentiable:
            return
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        trainable = next((a for a in tensors if a.requires_grad), None)
        if not torch.is_grad_enabled():         # a number now, to be refused once gradients are wanted
            self.recorder.loose |= trainable is not None or any(id(a) in self.recorder.made for a in tensors)
            return
        if trainable is None:
            return
        shown = {"__float__": "float()", "__complex__": "complex()"}.get(name, f".{name}()")
        owner = "a tensor" if id(trainable) in self.recorder.made else f"`{capture_name(trainable)}`"
        raise refuse(f"{shown} of {owner}, which requires a gradient: as a Python number it would get none",
                     "the tensor's entry itself, such as w[0], or w.detach() outside the mod where no gradient is wanted")

    def _write(self, name: str, args):
        target = next((a for a in args if isinstance(a, torch.Tensor)), None)
        shown = capture_name(target) if target is not None else "a captured tensor"
        what = "assignment into" if name == "__setitem__" else f"in-place {name} on"
        return refuse(f"{what} `{shown}` (a write to a captured tensor): positions run in parallel and in any order",
                      "a new value in the mod, or the write before the call")

    def _scalar(self, name: str, args, kwargs):
        """torch.tensor(3.0), torch.full((), c), torch.zeros(()): a literal. None where it is not a number."""
        dtype = kwargs.get("dtype")
        if name in ("tensor", "scalar_tensor", "as_tensor"):
            data = args[0] if args else kwargs.get("data")
            if isinstance(data, (Symbolic, bool, int, float)):
                if dtype is None and len(args) > 1:
                    dtype = args[1]
                return METHODS[name](data, dtype)
            return None
        size = args[0] if args else kwargs.get("size")
        if not (isinstance(size, (tuple, list)) and len(size) == 0):
            return None
        fill = {"zeros": 0.0, "ones": 1.0}.get(name)
        if fill is None:
            fill = args[1] if len(args) > 1 else kwargs.get("fill_value")
        return METHODS["tensor"](fill, dtype)

    def _note(self, result, args) -> None:
        """Remembers tensors made inside the mod. Views of a captured tensor are noted as used, but not as writable."""
        if isinstance(result, (tuple, list)):
            for r in result:
                self._note(r, args)
        elif isinstance(result, torch.Tensor):
            self.recorder.note_derived(result, args)
        elif isinstance(result, (bool, int, float)):
            self.recorder.folded = True
