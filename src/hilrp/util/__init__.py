"""What every room uses, and what knows nothing of relevance: errors, nested structures, files, memory."""
