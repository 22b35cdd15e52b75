"""Stages that export from a store, import into one, copy it, and keep it whole."""
