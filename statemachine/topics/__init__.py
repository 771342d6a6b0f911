"""Rows about topics: their configuration and their ids."""
