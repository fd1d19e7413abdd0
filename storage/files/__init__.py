"""Private files and folders, names that may be paths, digests."""
