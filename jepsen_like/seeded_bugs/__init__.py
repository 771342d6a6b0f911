"""Seeded bugs: bugs planted in copies of the packages, to prove that the test harness finds bugs. Each is a file below
`data`."""
