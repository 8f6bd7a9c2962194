"""Policy gradients for language models: rewards of groups in, a loss over tokens out."""
