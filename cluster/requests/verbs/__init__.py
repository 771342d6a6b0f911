"""The rows: one `cluster.requests.verb.Verb` for each request code, by what they are about."""
