"""Implements the broker for clients of any protocol: group members, offsets, pulls and long polls, sends, lookups,
queue locks.

May import `cluster.replication`, `cluster.members` and below, and from `raftmq_wire` only the format of a stored
message. It knows no frame, request code or header of a protocol. Outcomes are returned as values; a refusal is a
`cluster.broker.refusal.Refused`. Runs on the event loop. Protocol fronts (`cluster.remoting`), `cluster.admin` and the
node call this package.
"""
