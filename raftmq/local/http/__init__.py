"""Requests of commands to the HTTP API of nodes: contexts, credentials, TLS, and the decoding of answers."""
