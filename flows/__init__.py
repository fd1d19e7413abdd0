"""Flows: the order of the steps, in words."""
