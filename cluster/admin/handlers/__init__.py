"""Handlers of the HTTP API, one file for each family of paths. A handler reads the request, asks the node, and makes
the answer."""
