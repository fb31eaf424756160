"""What a store can do: create, append, lease, cut, publish. One file a store."""
