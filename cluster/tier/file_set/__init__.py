"""Sets of files in an object store: a checkpoint of the state, a backup (docs/adr/0067).

May import `cluster.tier.store` and below. Called by `cluster.tier` and `cluster.backup`.
"""
