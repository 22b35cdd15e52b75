"""Stage 1: a frozen timm model, its preprocessing, sources of images, and the extraction of tokens."""
