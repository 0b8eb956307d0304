"""The benchmark: attribution methods compared on models and data, with controls beside every figure."""
