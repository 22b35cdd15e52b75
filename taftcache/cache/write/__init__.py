"""Writing: staged aside, committed by one swap of the root manifest, swept afterwards."""
