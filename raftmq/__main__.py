"""`python -m raftmq` and the `raftmq` command: finds the server's packages before it loads the command."""

import sys

from raftmq.server_home import become_ours
from raftmq_wire.errors import LocalError, fix_label


def main() -> None:
    """Runs the command, or says in three lines why it cannot run."""
    try:
        become_ours()
    except LocalError as error:
        if sys.argv[1:] == ["--version"]:
            from importlib.metadata import version

            sys.exit(f"raftmq {version('raftmq')} (the client)")
        sys.stderr.write(f"{error.what}\nbecause: {error.why}\n{fix_label(error.fix)}{error.fix}\n")
        sys.exit(error.exit_code)
    from raftmq.cli import main as run

    run()


if __name__ == "__main__":
    main()
