"""DP-MERF: a generator trained on one noisy mean embedding per label."""
