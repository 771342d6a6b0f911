"""Commands about messages, topics and groups."""
