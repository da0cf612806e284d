"""What every part needs to know of torch tensors: element types, whether a tensor is still what it was, whether work on it is
captured, and when it is done."""
from .dtypes import FROM_TORCH, TO_TORCH, dtype_of, torch_dtype
from .graphs import capture_on
from .state import TensorKey, all_now, tensor_state
from .streams import stream_on, wait_for

__all__ = ["FROM_TORCH", "TO_TORCH", "TensorKey", "all_now", "capture_on", "dtype_of", "stream_on", "tensor_state", "torch_dtype",
           "wait_for"]
