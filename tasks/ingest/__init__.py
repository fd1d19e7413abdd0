"""From rows to codes, one row at a time, and to bounded contributions of patients."""
