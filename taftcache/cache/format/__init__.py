"""FORMAT.md as code: what a store's files say, and how they are checked."""
