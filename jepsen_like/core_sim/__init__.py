"""Raft alone, broken on purpose: real cores over simulated disks, network and clocks, thousands of seeds a minute."""
