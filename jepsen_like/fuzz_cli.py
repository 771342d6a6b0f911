"""`raftmq chaos fuzz`: sends almost valid requests to every handler of three live nodes, and checks meanwhile and
afterwards that the nodes still work."""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from raftmq.local_path import LocalPath

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.fuzz.campaign import FuzzResult
    from jepsen_like.fuzz.shot import Port, Shot
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

T = TypeVar("T")
TARGETS = ("remoting", "http", "peer", "tls")
MISSED_CODE = 3
SEGMENT_BYTES = 6 << 20
"""Segment size of the fuzzed nodes. It is small, so that messages are soon in the tier; nodes keep one or two
segments."""


@click.command("fuzz")
@click.option(
    "--requests", type=click.IntRange(min=1), default=100_000, show_default=True, metavar="N", help="How many."
)
@click.option(
    "--each", type=click.IntRange(min=6), metavar="N", help="This many for each port, a sixth of it for tls, instead."
)
@click.option("--rate", type=click.FloatRange(min=1), metavar="N", help="Per second; without it as many as possible.")
@click.option("--time", "time_s", type=click.FloatRange(min=1), metavar="S", help="Send no more after S seconds.")
@click.option(
    "--resume",
    type=LocalPath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Send what the runs in FILE have left over, and add this run to it.",
)
@click.option("--target", type=click.Choice([*TARGETS, "all"]), default="all", show_default=True, help="Which port.")
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed for the requests; it is printed, so a run can be repeated."
)
@click.option("--secured", is_flag=True, help="As a Super where rules are enforced; every other connection over TLS.")
@click.option(
    "--replay",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Send the recorded requests of an earlier run one at a time until the defect shows.",
)
@click.option("--out", type=LocalPath(path_type=Path), metavar="DIR", help="The run's new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def fuzz_command(
    requests: int,
    each: int | None,
    rate: float | None,
    time_s: float | None,
    resume: Path | None,
    target: str,
    seed: int | None,
    secured: bool,
    replay: Path | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Send almost valid requests to every handler.

    Harmless requests of the same rate follow, again and again, and honest clients send all the time: their p99 is
    compared.

    Exit code: 0 nothing found and every handler reached, 1 something found (its requests are in the run's folder),
    3 a handler was not reached. With --resume all runs in the file count.
    """
    from jepsen_like.fuzz.ledger import FuzzLedger
    from jepsen_like.live.run_lifecycle import run_folder
    from raftmq.commands.shared_options import ended_like_ctrl_c, print_json

    def tell(text: str) -> None:
        if not as_json:
            click.echo(text)

    seed = secrets.randbelow(2**31) if seed is None else seed
    folder = run_folder(out, seed)
    with ended_like_ctrl_c():
        if replay is not None:
            return _replay(folder, replay, seed, tell, secured=secured)
        many = f"--requests {requests}" if each is None else f"--each {each}"
        again = f"{many} --target {target} --seed {seed}{' --secured' if secured else ''}"
        tell(f"seed {seed}    (again: raftmq chaos fuzz {again})")
        ledger = FuzzLedger.read(resume)
        wanted = ledger.left_of(_wanted(requests, each, target))
        if not any(wanted.values()):
            tell(f"nothing is left to send: {ledger.told()}")
            return ledger.exit_code(MISSED_CODE)
        result, files = _run(folder, wanted, seed, tell, secured=secured, rate=rate, time_s=time_s)
        ledger.add(seed, result)
    if as_json:
        print_json(_told(result, files, seed) | {"folder": str(folder)})
    else:
        _show(result, files, folder)
        if resume is not None:
            tell(ledger.told())
    return ledger.exit_code(MISSED_CODE)


def _wanted(requests: int, each: int | None, target: str) -> dict[Port, int]:
    from jepsen_like.fuzz.loads import SHARE, TLS_PART
    from jepsen_like.fuzz.shot import Port

    targets = [Port(name) for name in (TARGETS if target == "all" else (target,))]
    if each is not None:
        return {port: each // TLS_PART if port is Port.TLS else each for port in targets}
    whole = sum(SHARE[port] for port in targets)
    return {port: math.ceil(requests * SHARE[port] / whole) for port in targets}


def _run(
    folder: Path,
    wanted: dict[Port, int],
    seed: int,
    tell: Callable[[str], None],
    *,
    secured: bool,
    rate: float | None,
    time_s: float | None,
) -> tuple[FuzzResult, list[Path]]:
    import uvloop

    from jepsen_like.fuzz.campaign import PKI, Campaign, write_found

    def play(subject: RaftMQSubject) -> FuzzResult:
        most_s = math.inf if time_s is None else time_s
        campaign = Campaign(subject, wanted, seed, tell, pki=folder / PKI, rate=rate or 0.0, time_s=most_s)
        return uvloop.run(campaign.run())

    result = _with_cluster(folder, seed, tell, play, secured=secured)
    return result, write_found(folder, result.found)


def _replay(folder: Path, file: Path, seed: int, tell: Callable[[str], None], *, secured: bool) -> int:
    import uvloop

    from jepsen_like.fuzz.campaign import PKI, replay
    from jepsen_like.fuzz.shot import load, save

    rows = load(file)

    def play(subject: RaftMQSubject) -> tuple[int, Shot] | None:
        return uvloop.run(replay(subject, rows, tell, folder / PKI))

    shown = _with_cluster(folder, seed, tell, play, secured=secured)
    if shown is None:
        tell(f"none of {len(rows)} requests, each sent alone, shows a defect")
        return 0
    node, shot = shown
    save(folder / "alone.jsonl", [shown])
    tell(f"it is this one, to node {node}, {shot.handler}: {shot.data[:2000]!r}")
    tell(f"again: raftmq chaos fuzz --replay {folder / 'alone.jsonl'}")
    return 1


def _with_cluster(
    folder: Path, seed: int, tell: Callable[[str], None], play: Callable[[RaftMQSubject], T], *, secured: bool
) -> T:
    from jepsen_like.fuzz.campaign import PKI
    from jepsen_like.fuzz.tls import make_files
    from jepsen_like.live.probes.tier_probe import STORE, environment
    from jepsen_like.live.run_lifecycle import NODES
    from jepsen_like.live.subjects.owned_resources import owning
    from jepsen_like.live.subjects.processes import Processes
    from jepsen_like.live.subjects.raftmq_subject import RaftMQSubject

    with owning(folder, tell) as owned:
        nodes = folder / NODES
        owned.add_directory(nodes)
        settings = environment(nodes / STORE, SEGMENT_BYTES) | {
            "RAFTMQ_RETENTION__BYTES_MAX": str(SEGMENT_BYTES),
            "RAFTMQ_TIER__READ": "FORCE",
        }
        settings |= make_files(folder / PKI)
        subject = RaftMQSubject(
            nodes,
            Processes(owned),
            seed=seed,
            segment_size_bytes=SEGMENT_BYTES,
            environment=lambda _: settings,
            is_direct=True,
            is_patient=True,
            has_users=secured,
        )
        try:
            subject.start()
            return play(subject)
        finally:
            subject.stop()
            owned.keep_directory(nodes)


def _told(result: FuzzResult, files: list[Path], seed: int) -> dict[str, object]:
    return {
        "schema": 1,
        "seed": seed,
        "requests": result.fired,
        "seconds": round(result.seconds, 1),
        "found": [each.what for each in result.found],
        "files": [str(path) for path in files],
        "missed": result.missed,
        "counts": dict(sorted(result.counts.items())),
        "ways": dict(sorted(result.ways.items())),
        "memory_mib": result.memory_mib,
        "honest_p99_ms": {
            name: round(seen.p99_ms, 1) for name, seen in zip(("hostile", "harmless"), result.honest, strict=True)
        },
    }


def _show(result: FuzzResult, files: list[Path], folder: Path) -> None:
    for name, count in sorted(result.counts.items()):
        click.echo(f"  {count:>9,}  {name}")
    for name in result.missed:
        click.echo(f"  {0:>9}  {name}    NOT REACHED")
    click.echo(
        f"{result.fired:,} requests in {result.seconds:.0f} s ({result.fired / result.seconds:,.0f} per second);"
        f" memory grew by at most {result.memory_mib} MiB"
    )
    for way, count in sorted(result.ways.items()):
        click.echo(f"  {count:>9,}  {way}")
    hostile, harmless = result.honest
    click.echo(
        f"p99 of {hostile.sends:,} honest sends {hostile.p99_ms:.1f} ms; {harmless.p99_ms:.1f} ms of {harmless.sends:,}"
        " beside a harmless load of the same rate"
    )
    for each in result.found:
        click.echo(f"  - {each.what}    ({len(each.shots)} requests may have done it)")
    for path in files:
        click.echo(f"again: raftmq chaos fuzz --replay {path}")
    click.secho(f"{'clean' if result.is_clean else 'not clean'}    ({folder})", bold=True)
