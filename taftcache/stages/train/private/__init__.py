"""Private training of components: what it spends, what it may claim."""
