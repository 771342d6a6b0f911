"""The cluster's problems, with their begin and the command that helps: rules over what each node knows, merged by
cause.

`rules` checks one node, `around` asks the other nodes, `merge` makes one list of all; `watch` does this periodically
and on request. `catalogue` contains codes, severities and commands (docs/runbooks.md has a section for each).
"""
