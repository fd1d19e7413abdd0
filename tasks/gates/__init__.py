"""Data-validation gates: rules of a table, and agreement with the measurement."""
