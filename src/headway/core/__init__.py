"""What is true: types, rules, ledger. Standard library only; no clock, no threads, no numpy."""
