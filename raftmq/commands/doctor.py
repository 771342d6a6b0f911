"""`raftmq doctor`: checks that this installation uses everything that makes it fast."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from cluster.config.config import Config
from cluster.config.exposure_check import open_folder, open_ports
from cluster.config.loading import load
from cluster.config.local_layout import name_of, read_cluster
from raftmq.commands.shared_options import data_dir, json_option, show
from raftmq.local_path import LocalPath
from raftmq.server_home import is_installed
from raftmq_wire.errors import ExitCode, LocalError

if TYPE_CHECKING:
    from cluster.runtime.host.cgroup import Bounds


class CheckResult(NamedTuple):
    """The result of one check."""

    name: str
    found: str
    finding: str = ""
    """The fault, and what to do about it; "" if there is none."""


@click.command()
@click.option(
    "--host",
    "directory",
    type=LocalPath(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Examine this machine too, and the disk of DIR, where a node keeps its data or will.",
)
@click.option(
    "--config",
    "configs",
    type=LocalPath(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Examine what strangers can reach of the node with this raftmq.toml too; may be repeated.",
)
@json_option
def doctor(directory: Path | None, configs: tuple[Path, ...], as_json: bool) -> int:
    """Examine this installation: its Python, the kernel, the checksums.

    It looks at the Python that runs this command. What running nodes use is shown by `raftmq status`. With --host also
    kernel settings, memory, swap, file system, disk, how busy it is in one second, measured sync speed, whether
    O_DSYNC would be quicker, open files, clock. Of the nodes of a local cluster, and of those with --config, also
    whether they listen on every address, whether other users can enter their data directories, and whether their
    certificates count. Exit code: 1 if something should be changed, else 0.
    """
    checks = [_python(), _kernel(), _checksums(), _control_group(), *_registry()]
    for path in configs or _local_configs():
        checks += _reachable(path)
    if directory is not None:
        from raftmq.local.host_checks import host_checks

        checks += [CheckResult(*each) for each in host_checks(directory)]
    findings = [check.finding for check in checks if check.finding]
    lines, width = [], max(10, *(len(check.name) for check in checks))
    for check in checks:
        lines.append(f"{check.name:<{width}} {check.found}")
        lines += [f"{'':<{width}} {check.finding}"] if check.finding else []
    show(as_json, {"checks": [check._asdict() for check in checks], "findings": findings}, *lines)
    return ExitCode.FAILED if findings else ExitCode.OK


def _registry() -> Iterator[CheckResult]:
    """Checks pysyncobj, on which the registry runs, if the local cluster has one."""
    from cluster.registry.pysyncobj_check import VERSION, check_installed

    try:
        if not read_cluster(data_dir(None)).registry:
            return
    except LocalError:
        return
    try:
        check_installed()
    except LocalError as error:
        yield CheckResult("registry", "it cannot start", f"{error.what}: {error.why}. {error.fix}")
    else:
        yield CheckResult("registry", f"pysyncobj {VERSION}")


def _local_configs() -> list[Path]:
    """Returns the raftmq.toml of each node of the local cluster, if there is one."""
    try:
        return [node.config_path for node in read_cluster(data_dir(None)).nodes]
    except LocalError:
        return []


def _reachable(path: Path) -> Iterator[CheckResult]:
    """Checks which ports and files of the node with that configuration other machines and users can reach. Raises
    ConfigError."""
    config = load(path, os.environ)
    name = name_of(config.cluster.group, config.node.id)
    ports, folder = open_ports(config), open_folder(Path(config.node.data_dir))
    yield CheckResult(f"ports of node {name}", "on every address" if ports else "on addresses of their own", ports)
    yield from _tls(config)
    yield CheckResult(f"data of node {name}", config.node.data_dir, folder.says if folder else "")


def _tls(config: Config) -> Iterator[CheckResult]:
    """Checks the TLS modes and the certificates of a node that speaks TLS."""
    if not config.speaks_tls:
        return
    from raftmq.local.tls.node_certificates import why_unfit

    ports = {each.name: each.tls for each in config.listeners} | {"peer": config.peer.tls, "admin": config.admin.tls}
    modes = {name: config.tls_mode(wanted) for name, wanted in ports.items()}
    told = ", ".join(f"{name} {mode}" for name, mode in modes.items())
    yield CheckResult(f"TLS of node {name_of(config.cluster.group, config.node.id)}", told, why_unfit(config))


def _python() -> CheckResult:
    return CheckResult("python", f"{sys.executable} ({platform.python_version()})")


def _kernel() -> CheckResult:
    from raftmq_wire import kernel

    return CheckResult("kernel", kernel.NAME, kernel.WHY)


def _control_group() -> CheckResult:
    from cluster.runtime.host.cgroup import bounds

    return control_group(bounds())


def control_group(found: Bounds) -> CheckResult:
    """Checks whether the limits of this process's control group suit a node."""
    from cluster.runtime.host.cgroup import MEMORY_MIN

    wrong = []
    if found.memory_bytes is not None and found.memory_bytes < MEMORY_MIN:
        wrong.append(f"give a node at least {MEMORY_MIN >> 20} MiB of memory, or the kernel ends it under load")
    if found.processors is not None and found.processors < 1:
        wrong.append("give a node at least one processor; one that is held back loses elections")
    return CheckResult("control group", found.says, "; ".join(wrong))


def _checksums() -> CheckResult:
    from cluster.runtime.host.versions import versions

    return checksums(versions()["zlib-ng"], by_pip=is_installed())


def checksums(version: str, *, by_pip: bool) -> CheckResult:
    """Checks whether the fast checksum library is used. `by_pip`: True if pip installed this package, False in a
    working copy."""
    get = f"{sys.executable} -m pip install zlib-ng" if by_pip else "make setup"
    missing = f"{get} installs it; without it a body is checksummed by the slower zlib"
    return CheckResult("checksums", f"zlib-ng {version}", missing if version == "not installed" else "")
