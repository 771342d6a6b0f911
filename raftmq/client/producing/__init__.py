"""Producers: frames, windows, transactions and staged writes."""
