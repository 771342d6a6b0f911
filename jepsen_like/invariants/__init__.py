"""What must hold of a Raft group after every step; run by both simulators and by the tests of the core."""
