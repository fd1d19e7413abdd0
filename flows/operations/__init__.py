"""What keeps an installation running: deployments, watching, status, benchmarks."""
