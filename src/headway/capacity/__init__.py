"""What a run of a language model needs before anything of it is loaded: memory of every role, GPUs, updates a second."""
