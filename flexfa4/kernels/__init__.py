"""The attention kernels in CuTe DSL: what both architectures share here, then one folder an architecture, one role a module."""
