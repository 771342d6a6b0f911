"""Messages that wait: for their due time, for their transaction, or for the commit of a staged write."""
