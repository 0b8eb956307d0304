"""What the benchmark measures of a map. Every function takes maps ``[B,H,W]`` and returns one figure per image."""
