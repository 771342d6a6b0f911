"""Handles half messages and staged writes: messages that are stored now and become visible when their transaction
commits."""
