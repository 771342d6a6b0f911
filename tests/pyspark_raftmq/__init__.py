"""A package, so that its cluster and its Spark session end with its last test."""
