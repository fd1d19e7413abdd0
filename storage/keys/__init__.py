"""Keys of the people who answer for a release, and their signatures."""
