"""Clients' connections: accepts them, reads frames, writes answers, and bounds what they hold."""
