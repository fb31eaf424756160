"""Files and their rows, and the trees that they are in."""
