"""Language models: loading, generating, prompts, tasks and rewards."""
