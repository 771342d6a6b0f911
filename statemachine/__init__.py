"""The deterministic broker state: rows are a pure function of the log."""

__distribution__ = "raftmq"  # raftmq checks this line: the folder names are generic, others use them too
