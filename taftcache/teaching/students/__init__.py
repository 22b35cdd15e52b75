"""Small networks trained from images under a prior."""
