"""How rows become bytes."""
