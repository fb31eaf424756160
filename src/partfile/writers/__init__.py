"""Formats: rows become bytes."""
