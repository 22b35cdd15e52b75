"""Names of a store's objects, for modules that must load no heavy library."""

COMPONENTS = "components/"
HEAD = "models/head"
EXACT = "models/exact"
MEAN = "models/mean"
