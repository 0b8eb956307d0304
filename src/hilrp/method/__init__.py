"""The method: rules on tensors, the paper in code.

Four primitives (linear maps, bilinear mixing, normalisation and gating, reindexing), the table that says which
operation is which, and the ledger. `secant` has the same operations relative to a reference, `fast` the same numbers
sooner.
"""
