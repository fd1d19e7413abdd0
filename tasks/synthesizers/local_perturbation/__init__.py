"""Local perturbation: every record by itself under noise."""
