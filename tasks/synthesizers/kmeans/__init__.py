"""Private k-means, plain or on random features, and the synthesizer that stands on it."""
