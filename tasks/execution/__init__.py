"""Where shards are worked on: in this process or on a Dask cluster."""
