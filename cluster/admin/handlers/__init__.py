"""One file for each family of paths: reads the request, asks the node, builds the answer."""
