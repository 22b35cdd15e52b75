"""The feature store: numpy in, numpy out, no torch."""
