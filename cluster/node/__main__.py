"""Runs a node as a process: reads the arguments and the configuration, starts the event loop, sets up the garbage
collector, and prints errors in three lines."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from cluster.config.config import Config
from cluster.config.loading import load, written_keys
from cluster.config.local_layout import name_of, node_object
from cluster.config.ranges import hold
from cluster.config.source import ConfigError
from cluster.runtime import logs
from cluster.runtime.host.cgroup import fit_memory
from cluster.runtime.host.descriptors import fit
from cluster.runtime.host.private_files import private
from cluster.runtime.host.service_manager import ServiceManager
from cluster.runtime.output_file import OutputFile
from cluster.runtime.tcp_ports import clash
from cluster.runtime.tls.dialling import widen
from cluster.runtime.turns.garbage_collection import Collector
from raftlog.errors import IdentityError, RaftLogError
from raftlog.types import Role
from raftmq_wire.errors import fix_label
from statemachine.rows.kv import KVError

if TYPE_CHECKING:
    from cluster.node.node import Node


async def run(
    config: Config,
    read_config: Callable[[], Config] | None = None,
    written: Callable[[], frozenset[str]] = frozenset,
) -> int:
    """Runs a node. Returns 0 after SIGTERM or SIGINT, and 1 after a failure. Raises the errors of `NodeRuns.run`, and
    IdentityError if the node's group has retired. On SIGHUP, the node reads its configuration again. `written` is
    explained at `Environment.written_keys`."""
    # Imported only after the configuration was found valid, because this takes a second.
    from cluster.node.node_runs import NodeRuns
    from cluster.runtime.environment import Environment

    def started(node: Node) -> None:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, stop)
        loop.add_signal_handler(signal.SIGHUP, _reload, node)
        manager.ready(f"{node_object(node.config.cluster.group, node.config.node.id)} serves")
        collector.thorough()  # frees the objects of start-up, or of the node before a reopening
        node.opened()

    def stop() -> None:
        manager.stopping()
        life.stop()

    manager = ServiceManager(os.environ, os.getpid())
    manager.recovering()
    environment = Environment(read_config=read_config, written_keys=written, fit_config=usable)
    life = NodeRuns(config, environment, started, closed=lambda node: manager.recovering())
    collector = Collector()

    def leads() -> bool:
        return life.node is not None and life.node.raw.role is Role.LEADER

    tending = asyncio.create_task(collector.tend(leads), name="garbage")
    try:
        node = await life.run()
    finally:
        tending.cancel()
        collector.close()
        manager.close()
    if node is not None and isinstance(node.failure, IdentityError):
        raise node.failure  # the node's group has retired
    return 1 if node is not None and node.failure else 0


def usable(config: Config) -> Config:
    """Returns the configuration as this process can use it: all values in their ranges, no more connections than it may
    have file descriptors, and no more memory than its control group allows. Raises ConfigError if hardly any
    descriptors are left for connections."""
    return fit_memory(fit(hold(config)))


def _reload(node: Node) -> None:
    with contextlib.suppress(ConfigError):  # the reason is in the log
        node.reload()


def main(arguments: list[str] | None = None) -> int:
    """Runs a node; returns 0 after an orderly stop, 1 after a failure, 2 for a bad configuration, 5 if its state must
    not be used."""
    parser = argparse.ArgumentParser(prog="raftmq serve")
    parser.add_argument("--config", required=True, help="path of raftmq.toml")
    parser.add_argument("--log-file", help="the file that stdout and stderr are; the node keeps it within its size")
    options = parser.parse_args(arguments)
    with private():
        return _main(options)


def _say(text: str) -> None:
    """Prints what happened, why, and what to type, as far as the text has these three lines. Used because logging may
    not be set up yet."""
    parts = text.split("\n", 2)
    lines = [label + line for label, line in zip(("", "because: ", fix_label(parts[-1])), parts, strict=False)]
    print("\n".join(lines), file=sys.stderr)  # noqa: T201


def _main(options: argparse.Namespace) -> int:
    read = functools.partial(load, options.config, dict(os.environ))
    written = functools.partial(written_keys, options.config, dict(os.environ))
    try:
        config = read()
        usable(config)  # first, so that a lack of descriptors is reported before files are opened
    except ConfigError as error:
        _say(str(error))
        return 2
    section, output = config.log_output, None
    if options.log_file:
        output = OutputFile(Path(options.log_file), section.file_bytes_max, section.files)
    logs.setup(section.level, section.format, name_of(config.cluster.group, config.node.id), output=output)
    faulthandler.register(signal.SIGQUIT)  # prints the stacks of all threads, even if the node hangs
    sys.setswitchinterval(0.0005)
    widen()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(config, read, written))
    except ConfigError as error:
        _say(str(error))
        return 2
    except (RaftLogError, KVError) as error:
        _say(str(error))
        return 5
    except OSError as error:
        ports = {f"listeners.{each.name}.port": each.port for each in config.listeners}
        ports |= {"peer.port": config.peer.port, "peer.heartbeat_port": config.peer.heartbeat_port}
        text = clash(error, ports) or (
            f"The node cannot start.\n{error}\nFree the address or the file it names, then start again."
        )
        _say(text)
        return 1


if __name__ == "__main__":
    sys.exit(main())
