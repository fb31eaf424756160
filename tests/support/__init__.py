"""What tests, examples and benchmarks share: servers, sinks that die, oracles."""
