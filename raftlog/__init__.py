"""Consensus and the commit log: no network, no event loop."""
