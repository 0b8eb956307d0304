"""The four primitives: linear maps, bilinear mixing, normalisation and gating, reindexing."""
