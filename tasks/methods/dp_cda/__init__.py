"""DP-CDA: class-centric data aggregation, released records that are noisy means of one class."""
