"""Executors of the work on shards: this process or a Dask cluster."""
