"""The one way to run a helper process."""
