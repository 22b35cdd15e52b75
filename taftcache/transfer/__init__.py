"""Adaptive feature transfer: a small model that is taught by the cached features of larger ones."""
