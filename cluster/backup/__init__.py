"""Backups of a node's directory, new clusters from them, metadata as JSON, and one survivor that goes on alone."""
