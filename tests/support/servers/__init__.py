"""Real servers of the tests as processes of their own, and what stands in front of them."""
