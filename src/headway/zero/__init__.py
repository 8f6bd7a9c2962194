"""MuZero: a model learned for search, and for nothing else."""
