"""Bugs planted in copies of the packages, to prove that the harness finds bugs: each is a file below `data`."""
