"""Synthesizers: pure mathematics, arrays in, arrays out."""
