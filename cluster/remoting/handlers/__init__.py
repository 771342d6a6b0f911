"""One file for each family of requests: decodes its fields, asks the broker, encodes the answer."""
