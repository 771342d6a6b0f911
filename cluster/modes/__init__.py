"""When a send is answered: acknowledgement levels, what was answered early, and reads from followers."""
