"""Requests that this node forwards to the leader, with what it states about their senders."""
