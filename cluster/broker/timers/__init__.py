"""Messages that wait for their due time: reads what is due, copies it into its queue, or takes it back before."""
