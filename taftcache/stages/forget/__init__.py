"""Requests to forget, and their receipts."""
