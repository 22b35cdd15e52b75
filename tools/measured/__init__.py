"""Tables of what benchmarks measured: each a function of a kept report."""
