"""DPMix: noisy averages of records that were drawn from the whole table."""
