"""Mending what a disk lost: damaged ranges of the log, and a vote that is withheld."""
