"""The tangent model's linear algebra: base point, J and Jᵀ over blocks of rows."""
