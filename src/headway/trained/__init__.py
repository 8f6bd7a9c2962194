"""What a run has learned, to use elsewhere: policies that act, models that reply, files for other programs."""
