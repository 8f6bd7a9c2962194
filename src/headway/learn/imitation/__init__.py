"""Learning to say what somebody else has said."""
