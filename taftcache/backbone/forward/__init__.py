"""Stage 1: who decodes, who runs the frozen layers, and where the rows go."""
