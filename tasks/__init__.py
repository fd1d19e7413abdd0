"""The work: encoding, gates, synthesizers, and the thin orchestrated steps around them."""
