"""Experience waits: the uniform and the prioritized replay, and the trees below them."""
