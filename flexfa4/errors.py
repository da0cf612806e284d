"""The errors flexfa4 raises. Each message says which argument, its value, what was expected and what to write instead."""


class FlexError(Exception):
    """Base of every error that flexfa4 raises on purpose."""


class TraceError(FlexError, TypeError):
    """A mod does something that one kernel for all positions cannot do. Names the user's file and line."""


class LookupOutOfRange(FlexError, IndexError):
    """A mod reads past the end of a captured tensor on a position that is not masked away."""


class ShapeError(FlexError, ValueError):
    """Shapes, lengths, dtypes or devices of the arguments do not fit together."""


class UnsupportedError(FlexError, NotImplementedError):
    """The request is well formed, and no engine here covers it."""


class StaleMaskError(FlexError, RuntimeError):
    """A BlockMask's captured tensors changed since it was built and it cannot be rebuilt in place."""


class ChangedCaptureError(FlexError, RuntimeError):
    """A captured tensor was written in place between a call and its backward pass, which needs it as it was."""
