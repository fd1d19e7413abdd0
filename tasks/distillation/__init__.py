"""Distillation of released rows to a few points with soft labels, free of charge."""
