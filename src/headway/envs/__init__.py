"""Games to play: the tools a collector steps. Each file is one game, or one family, and needs its own extra."""
