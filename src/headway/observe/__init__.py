"""What is left here moves in a later step."""
