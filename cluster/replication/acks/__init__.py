"""Acknowledgement levels: what must have happened before a send is answered, and answers before the commit."""
