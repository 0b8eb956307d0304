"""Pages to look at results: each a single file that needs nothing else, not even a connection."""
