"""How it is minimised, and how far from the optimum the result is."""
