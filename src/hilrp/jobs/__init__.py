"""Long work that can be stopped and goes on: files, the demo, datasets, benchmarks, coverage."""
