"""Handles sends: checks them, distinguishes repeated sends from new ones, queues them, and stores again the messages
that consumers send back."""
