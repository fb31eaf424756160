"""Kits for tests: the store contract, faults, power loss, a harness for operators."""
