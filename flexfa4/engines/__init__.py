"""What runs attention. `tiled` is pure torch and runs on any torch device."""
