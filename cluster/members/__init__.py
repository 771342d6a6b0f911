"""Who belongs to the group and who should lead: changes of the members, their checks, new nodes.

May import `cluster.peer` and below. Runs on the event loop; what makes a new node's directory runs in a command.
Called by the node, `cluster.admin` and local clusters.
"""
