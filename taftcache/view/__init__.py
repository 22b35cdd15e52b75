"""The page: look into a store in a browser, in one file, or in a notebook."""
