"""The budget ledger: an append-only journal in SQLite or PostgreSQL."""
