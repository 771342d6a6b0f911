"""Fault injection, histories and checkers."""

__distribution__ = "raftmq"  # raftmq checks this line: the folder names are generic, others use them too
