"""ClustMix: approximate, adapt, anonymize."""
