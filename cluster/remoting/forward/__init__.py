"""Requests that this node passes on to the leader, and what it says there of who asked."""
