"""Rivals of DP-CDA that release noisy slots: local perturbation and random projection."""
