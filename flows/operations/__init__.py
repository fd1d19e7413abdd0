"""Operation of an installation: deployments, watching, status, benchmarks."""
