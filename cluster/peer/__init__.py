"""Raft messages between nodes."""
