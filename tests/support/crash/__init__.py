"""The crash harness: what is killed, where, and what must be left."""
