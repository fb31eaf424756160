"""A small dataflow of subtasks and channels, run by a seeded scheduler in one thread."""
