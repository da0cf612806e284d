"""From graphs to CuTe DSL expressions. `emitter` and `elementwise` need cutlass; `approx`, `cubin` and `lower` do not."""
