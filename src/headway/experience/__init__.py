"""What a collector hands to a learner: frozen records of arrays, with their shapes."""
