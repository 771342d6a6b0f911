"""What several tests share: simulated nodes and groups, disks that fail, builders. Imported as `tests.support`."""
