"""What the paper compares with: ordinary fine-tuning, soups, SISA, and Adam on the tangent."""
