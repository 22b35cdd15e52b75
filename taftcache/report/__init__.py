"""Reports as files: Markdown, CSV, plots, and atomic writes; and intervals of the differences in them."""
