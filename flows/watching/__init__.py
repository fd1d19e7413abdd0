"""Operation of an installation: arrivals, events, status, planning and checks."""
