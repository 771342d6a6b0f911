"""Who belongs to the cluster while it runs: adding, promoting and removing nodes, and who should lead."""
