"""Adaptive feature transfer (AFT): a model that is taught by the cached features of larger ones."""
