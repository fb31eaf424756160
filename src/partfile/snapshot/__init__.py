"""State, checkpoints and their commit point. Knows nothing about part files."""
