"""The data-validation gates: rules of a table, and agreement with the sealed counts."""
