"""Pure mathematics of differential privacy: mechanisms, events, accountants, ledger rules."""
