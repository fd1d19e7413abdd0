"""One module per suite: its list of jobs, and a main that runs one of them."""
