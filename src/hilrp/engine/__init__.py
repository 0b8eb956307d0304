"""The engine: intercepts the torch calls of a running model and hands each to its rule."""
