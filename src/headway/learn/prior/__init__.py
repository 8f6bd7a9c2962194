"""Learning the prior of a search: a language model that says which actions of a text game look right."""
