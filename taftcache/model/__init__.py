"""What training makes: components, their composition, and models that predict."""
