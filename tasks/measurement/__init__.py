"""What every method stands on: the plan, the curator, statistics and encodings."""
