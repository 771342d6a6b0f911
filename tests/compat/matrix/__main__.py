"""`python -m tests.compat.matrix [CLIENT...]`: runs what has not passed yet, one client after the other, and a table.

Results are kept in .venv/compat/matrix/results.jsonl, one line per cell and run; a cell that passed is not run again
unless --again is given. Exit code 1 if a cell that was run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from dataclasses import asdict, fields

from tests.compat.conftest import INSTALLED
from tests.compat.matrix.programs import ABSENT, FEATURES, is_installed, parts, why_absent, why_spared
from tests.compat.matrix.run import ENOUGH, MODES, SETTINGS, Plan, Result, run_plan

HOME = INSTALLED / "matrix"
RESULTS = HOME / "results.jsonl"


def tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def load() -> list[Result]:
    """All results so far, oldest first."""
    if not RESULTS.exists():
        return []
    known = {field.name for field in fields(Result)}
    lines = RESULTS.read_text().splitlines()
    return [Result(**{name: value for name, value in json.loads(line).items() if name in known}) for line in lines]


def keep(results: list[Result]) -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.writelines(json.dumps(asdict(result)) + "\n" for result in results)


def latest(groups: int) -> dict[tuple[str, str, str], Result]:
    """Returns the last result of each cell in a cluster of so many groups of brokers."""
    return {(result.client, result.feature, result.mode): result for result in load() if result.groups == groups}


def cell_text(client: str, feature: str, mode: str, result: Result | None, notes: list[str]) -> str:
    """One mode's part of a cell; why it is absent or failed goes to `notes`, and its number into the cell."""

    def noted(reason: str) -> str:
        if reason not in notes:
            notes.append(reason)
        return f"({notes.index(reason) + 1})"

    if reason := why_absent(client, feature, mode):
        return noted(reason)
    if result is None:
        return "not run"
    if not result.passed:
        return noted(f"failed: {result.reason}")
    if mode == "calm":
        return f"{result.acknowledged:,}"
    if not result.kills:
        return f"{result.acknowledged:,} {noted(f'no leader was killed: {why_spared(client, feature)}')}"
    return f"{result.acknowledged:,}, up to {result.wait_max_s:.0f} s"


def table(modes: list[str], groups: int) -> str:
    """Feature by client, as docs/compatibility-tested.md shows it."""
    found, notes = latest(groups), list[str]()
    rows = [f"| | {' | '.join(ABSENT)} |", "|---" * (len(ABSENT) + 1) + "|"]
    for feature in FEATURES:
        cells = []
        for client in ABSENT:
            parts = [cell_text(client, feature, mode, found.get((client, feature, mode)), notes) for mode in modes]
            cells.append("; ".join(dict.fromkeys(parts)))
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *[f"{number}. {note}" for number, note in enumerate(notes, 1)]])


def enough_in(mode: str, args: argparse.Namespace) -> int:
    """Returns how many messages are to be acknowledged in each cell of a mode."""
    return int(ENOUGH[mode] if args.enough is None else args.enough)


def chosen_features(client: str, mode: str, wanted: list[str], args: argparse.Namespace) -> tuple[str, ...]:
    """Returns the features that the client offers, without those that have passed with as many messages."""
    found = {} if args.again else latest(args.groups)
    done = {key for key, result in found.items() if result.passed and result.acknowledged >= enough_in(mode, args)}
    return tuple(
        feature for feature in wanted if not why_absent(client, feature, mode) and (client, feature, mode) not in done
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.matrix", description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(ABSENT)}; default: all")
    parser.add_argument("--features", default=",".join(FEATURES), help="default: all")
    parser.add_argument("--modes", default="calm,kills", help=f"of {', '.join(MODES)}; default: calm,kills")
    parser.add_argument("--rate", type=float, default=60.0, help="messages a second of each feature")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="leaders are killed for so long, messages sent at least"
    )
    defaults = ", ".join(f"{count} {mode}" for mode, count in ENOUGH.items())
    parser.add_argument("--enough", type=int, help=f"messages to be acknowledged in each cell; default: {defaults}")
    parser.add_argument("--groups", type=int, default=1, help="groups of brokers; default: 1")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of each group; default: 3")
    parser.add_argument("--seed", type=int, help="where in a client's life it is struck; default: random")
    parser.add_argument("--apart", action="store_true", help="a cluster for each feature, not one for all of a client")
    parser.add_argument("--again", action="store_true", help="run cells that have passed, too")
    parser.add_argument("--table", action="store_true", help="only print what is known")
    args = parser.parse_args()
    os.environ.update(SETTINGS)  # the nodes inherit it
    failed, modes = 0, args.modes.split(",")
    for client in () if args.table else args.clients or ABSENT:
        if not is_installed(client):
            tell(f"{client} is skipped: make test-compat did not install it")
            continue
        for mode in modes:
            features = chosen_features(client, mode, args.features.split(","), args)
            for part in [(feature,) for feature in features] if args.apart else parts(client, mode, features):
                seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 32)
                tell(f"{client} {mode} seed {seed}: {', '.join(part)}")
                size = (args.groups, args.nodes)
                plan = Plan(client, part, mode, seed, args.rate, args.seconds, enough_in(mode, args), *size)
                results = run_plan(plan, HOME / f"{client}-{mode}-{seed}-{os.getpid()}", tell)
                keep(results)
                for result in results:
                    failed += not result.passed
                    tell(f"{result.feature}: {'passed' if result.passed else result.reason} {asdict(result)}")
    sys.stdout.write(table(modes, args.groups) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
