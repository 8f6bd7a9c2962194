"""Beside the path, never on it."""
