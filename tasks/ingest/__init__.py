"""Encoding of rows, one at a time, and bounds on the contributions of patients."""
