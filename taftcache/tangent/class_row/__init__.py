"""One token-pooled block, final norm and head in closed form on the class row."""
