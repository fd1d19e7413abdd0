"""The Prefect steps of a release."""
