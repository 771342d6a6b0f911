"""The invariants of a Raft group, which both simulators and the tests of the core check after every step."""
