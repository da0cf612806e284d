"""Every decision that shapes machine code, as frozen values that refuse to be wrong. Imports neither torch nor cutlass itself."""
