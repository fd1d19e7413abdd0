"""The methods as printed in their papers: not proven, for benchmarks on public data only."""
