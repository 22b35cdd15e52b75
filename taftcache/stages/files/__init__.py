"""What leaves a store, comes in, or keeps it whole."""
