"""The version of partfile: a leaf that every package may import."""

__version__ = "0.1.0"
