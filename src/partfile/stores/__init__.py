"""What storage can do: create, append, lease, cut, publish. One folder a backend."""
