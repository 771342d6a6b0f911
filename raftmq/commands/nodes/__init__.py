"""Commands about nodes and the cluster they form."""
