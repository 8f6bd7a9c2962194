"""Other people's names as data: a table a system, and one way to read them."""
