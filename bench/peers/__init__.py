"""Compares RaftMQ with other systems: three nodes of each on this machine, under the same loads, in alternating rounds.

`system` defines the interface of a system, and one module for each system implements it. `processes` starts and
reliably ends processes, `fetch` downloads systems, `loads` drives the load generators, `rounds` measures, `failover`
kills leaders, `report` prints.
"""
