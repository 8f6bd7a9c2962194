"""runs: say here what this package is for."""
