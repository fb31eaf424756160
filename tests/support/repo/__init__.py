"""What the tests know of this repository."""
