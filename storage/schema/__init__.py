"""Declarations about the columns of a table."""
