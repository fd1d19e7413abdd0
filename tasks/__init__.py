"""The work: encoding, gates, methods, and the thin orchestrated steps around them."""
