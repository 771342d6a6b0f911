"""Handles clients' connections: accepts them, reads frames, writes answers, and bounds the memory that they use."""
