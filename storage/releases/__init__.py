"""Sealed measurements and published bundles."""
