"""Forwards requests to the leader, together with what this node knows about their senders."""
