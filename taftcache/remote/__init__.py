"""Workers beyond this process: the only part that knows Dask, which does the scheduling, the retries and the wires."""
