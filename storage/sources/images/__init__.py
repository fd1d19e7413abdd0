"""Readers of folders with a file for each image."""
