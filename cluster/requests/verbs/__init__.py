"""The rows of the table of verbs: one `cluster.requests.verb.Verb` for each request code. Each module has the rows of
one subject."""
