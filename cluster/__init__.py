"""A running node and its protocols."""

__distribution__ = "raftmq"  # raftmq checks this line: the folder names are generic, others use them too
