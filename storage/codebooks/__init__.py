"""Codebooks: what others have written down about the columns of a table."""
