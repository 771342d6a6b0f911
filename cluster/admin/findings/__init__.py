"""Finds the cluster's problems. Each finding says since when the problem exists and which command helps.

`rules` finds the problems of one node, `other_nodes` asks the other nodes for theirs, and `merge` makes one list of
all. `watch` does this periodically and on request. `catalogue` says which problem may cause which, and which command to
type. docs/runbooks.md has a section for each code.
"""
