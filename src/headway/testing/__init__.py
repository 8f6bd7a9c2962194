"""Shipped test tools: fakes, workloads for the virtual runtime, and the contract suites."""
