"""Pure mathematics of differential privacy: mechanisms, events, accounting, ledger rules."""
