"""What is declared about the columns of a table."""
