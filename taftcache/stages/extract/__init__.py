"""Stage 1 and what brings rows into a store."""
