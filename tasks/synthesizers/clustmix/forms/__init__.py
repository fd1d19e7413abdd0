"""The form of ClustMix that a domain and settings ask for."""
