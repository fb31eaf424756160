"""A look at everything below a base path. Reads only."""
