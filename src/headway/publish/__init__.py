"""Versions leave."""
