"""Stage 2: components, private ones, compositions, and what they score."""
