"""Reports as files: Markdown, CSV, plots, and atomic writes."""
