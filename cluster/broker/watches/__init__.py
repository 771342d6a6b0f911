"""Watches what clients do: finds consumer groups that make no progress, messages in queues that consumers no longer
read, and load that is uneven or refused."""
