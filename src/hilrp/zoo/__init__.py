"""Small trained models of every family."""
