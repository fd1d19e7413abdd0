"""Where tables come from, and how their rows are read: each row by itself."""
