"""Random programs and torch's own samples of every operation, explained and checked against what must hold."""
