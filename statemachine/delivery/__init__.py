"""Messages that wait: for their time, for their transaction, for the commit of their write."""
