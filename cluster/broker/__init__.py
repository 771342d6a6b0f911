"""The broker, for any protocol: group members, offsets, pulls and long polls, sends, lookups, queue locks.

May import `cluster.replication`, `cluster.members` and below, and the stored message of `raftmq_wire`; no frame, code
or header of a protocol. Outcomes are values, refusals are `cluster.broker.refusal.Refused`. Runs on the event loop.
Protocol fronts (`cluster.remoting`), `cluster.admin` and the node call this package.
"""
