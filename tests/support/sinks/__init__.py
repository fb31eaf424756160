"""Sinks of the tests: lives that are cut short, and what they must leave."""
