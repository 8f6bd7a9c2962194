"""What a run of a language model needs, before anything is loaded: memory of every role, GPUs, updates a second."""
