"""What changes a sink from outside, as a plan and then as its execution. Knows nothing of a terminal."""
