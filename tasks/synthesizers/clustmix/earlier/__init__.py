"""ClustMix for images: slices of the domain, noisy histograms, KIP on released moments."""
