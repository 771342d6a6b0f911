"""RaftMQ beside its peers: three nodes of each system on this machine, under the same loads, in alternating rounds.

`system` says what a system is; one module for each system implements it. `processes` starts and surely ends what runs,
`fetch` gets it, `loads` drives the load generators, `rounds` measures, `failover` kills leaders, `report` tells.
"""
