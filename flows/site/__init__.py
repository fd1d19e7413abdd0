"""The site file: what an operator declares about a table and its releases."""
