"""Measuring a cluster on this machine: what `raftmq bench` and `make bench` stand on."""
