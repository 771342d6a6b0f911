"""Membership and preferred leaders: changes of the members, their checks, new nodes.

May import `cluster.peer` and below. Runs on the event loop; a new node's directory is made in a command. The node,
`cluster.admin` and local clusters call this package.
"""
