"""Random projection: every record by itself under noise, in a few public random directions."""
