"""Experience enters."""
