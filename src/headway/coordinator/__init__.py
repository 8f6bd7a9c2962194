"""Who goes next: the coordinator, its settings, its checkpoints. Knows no station and no heavy package."""
