"""Sources of tables, and readers that read each row by itself."""
