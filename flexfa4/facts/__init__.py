"""What is known of a graph before it runs: simpler forms, axes, affine forms, bounds, derivatives."""
