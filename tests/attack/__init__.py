"""Attacks: bad files, forged requests, damaged runs."""
