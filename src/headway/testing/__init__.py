"""Shipped for your own tests: fakes, contract suites, and an auditor of event logs."""
