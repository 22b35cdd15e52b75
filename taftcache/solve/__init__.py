"""Minimising the objective, and bounding how far from the optimum the result is."""
