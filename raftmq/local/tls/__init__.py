"""Certificates and keys that the operator makes: of a CA, of nodes and clients, and of a whole local cluster."""
