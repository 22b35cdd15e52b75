"""The head alone under a quadratic loss, in closed form: from its rows' products or from sums over them."""
