"""The feature store: the only home of zarr; numpy in, numpy out, no torch."""
