"""Approximate inverses of a Hessian: preconditioners, and exact ones for small problems."""
