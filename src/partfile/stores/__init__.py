"""Storage: create, append, lease, cut, publish. One folder a backend."""
