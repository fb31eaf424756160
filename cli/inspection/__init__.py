"""What there is below a base path, as a person asks for it. Reads only, and knows nothing of a terminal."""
