"""Find, finish and clean what a crash left behind. Knows nothing of a terminal."""
