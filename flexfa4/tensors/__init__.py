"""What every part needs to know of torch tensors: element types, and whether a tensor is still what it was."""
from .dtypes import FROM_TORCH, TO_TORCH, dtype_of, torch_dtype
from .state import TensorKey, all_now, tensor_state

__all__ = ["FROM_TORCH", "TO_TORCH", "TensorKey", "all_now", "dtype_of", "tensor_state", "torch_dtype"]
