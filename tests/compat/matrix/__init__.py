"""Each client times each feature, calm and while leaders are killed: `python -m tests.compat.matrix --help`."""
