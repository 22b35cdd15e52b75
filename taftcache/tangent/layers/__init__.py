"""Closed-form layers on all tokens."""
