"""The client's consumers: group membership, pulls, positions, and delivery of messages to the caller."""
