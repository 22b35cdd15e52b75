"""A timm model cut in two: frozen layers before, the tail that is linearised behind."""
