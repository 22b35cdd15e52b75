"""The pipeline's verbs, each a function from a recipe or a store to a report."""
