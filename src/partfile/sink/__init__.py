"""The life cycle of a part file: bucket states, rolling, two-phase commit."""
