"""Getting a model with its weights, its preprocessing and its pictures."""
