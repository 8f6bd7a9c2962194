"""TextZero: MuZero or UniZero for games of words, whose actions are texts and different ones in every state."""
