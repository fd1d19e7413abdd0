"""The budget ledger: a journal that only grows, on SQLite or PostgreSQL."""
