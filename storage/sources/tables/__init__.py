"""Readers of tables in columns."""
