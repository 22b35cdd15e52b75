"""Requests to forget, their receipts, and the audit of both."""
