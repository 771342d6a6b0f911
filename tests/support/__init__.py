"""The common parts of tests: simulated nodes and groups, disks that fail, builders. Imported as `tests.support`."""
