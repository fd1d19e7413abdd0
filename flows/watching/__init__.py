"""Everything that looks after an installation: arrivals, events, status, planning, checks."""
