"""Trees of other sinks: what each file is, and a plan that is done as it was printed."""
