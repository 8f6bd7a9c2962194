"""UniZero: MuZero whose model is a transformer over what was seen and done."""
