"""Do the replicas hold the same? Digests compared as entries are applied, a fence for who differs, and scans."""
