"""What is minimised: losses, weights of rows, and the regularised problem."""
