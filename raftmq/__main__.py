"""`python -m raftmq` and the `raftmq` command: the check of this package's __init__ runs before the command loads."""

from raftmq.cli import main

if __name__ == "__main__":
    main()
