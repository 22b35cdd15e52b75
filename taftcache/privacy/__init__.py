"""Differentially private training on cached rows."""
