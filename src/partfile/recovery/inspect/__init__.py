"""What there is below a base path. Reads only."""
