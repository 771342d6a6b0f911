"""The client's consumers: group membership, pulls, positions, and handing messages out to the caller."""
