"""Codebooks: existing documentation of the columns of a table."""
