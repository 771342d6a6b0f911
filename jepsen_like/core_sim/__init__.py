"""A simulator of the Raft core alone, under faults: real cores over simulated disks, network and clocks, thousands of
seeds a minute."""
