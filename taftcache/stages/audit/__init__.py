"""The audit of what forgetting promised: in the store, in its receipts, and in files that were made from it."""
