"""Accountants: turn events into (epsilon, delta)."""
