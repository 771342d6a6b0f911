"""The HTTP admin API."""
