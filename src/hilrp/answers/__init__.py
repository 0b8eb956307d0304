"""Answers that models generate, word by word: what each word owes to the pictures, to the prompt, to earlier words."""
