"""The cluster's problems, since when they exist, and what to type: rules over what each node knows, merged by cause.

`rules` look at one node, `around` asks the other nodes, `merge` makes one list of all; `watch` does this by the clock
and on request. Codes, severities and commands stand in `catalogue` (docs/runbooks.md has a section for each).
"""
