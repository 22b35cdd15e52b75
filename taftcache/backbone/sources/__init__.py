"""Where labelled images come from: one file a source."""
