"""Acknowledgement levels: the condition for answering a send, and answers before the commit."""
