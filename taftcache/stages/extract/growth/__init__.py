"""How a store takes further samples: what becomes of each, carrying it out, and the report."""
