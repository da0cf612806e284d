"""The command `flexfa4`."""
