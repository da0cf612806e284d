"""The main job on real input: `flexfa4 demo`, or `make demo`. Needs the extra `flexfa4[demo]`."""
