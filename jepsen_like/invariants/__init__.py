"""The invariants of a Raft group after every step; both simulators and the tests of the core check them."""
