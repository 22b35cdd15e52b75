"""What the page asks for and the server works out then: lists, costs, comparisons, solves without samples."""
