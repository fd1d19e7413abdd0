"""Where data come from and where releases go: cohorts, workspace, ledger, release store."""
