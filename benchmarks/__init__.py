"""Scripts that measure utility, cost and memory on public or generated tables."""
