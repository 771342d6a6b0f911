"""Implements acknowledgement levels: they say what must have happened before a send is answered. Some levels answer
before the commit."""
