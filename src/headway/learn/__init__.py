"""Weights change."""
