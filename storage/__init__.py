"""Sources of data and stores of results: cohorts, workspace, ledger, release store."""
