"""Workers beyond this process: the only part that knows Dask, which does scheduling, retries and communication."""
