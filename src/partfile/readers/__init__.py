"""Read what a sink has finished, or promised."""
