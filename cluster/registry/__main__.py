"""Runs a name server of the registry as a process: `python -m cluster.registry --config registry.toml`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from cluster.config.local_layout import REGISTRY_GROUP, node_object
from cluster.config.source import ConfigError
from cluster.registry.name_server import NameServer
from cluster.registry.pysyncobj_check import check_installed
from cluster.registry.registry_file import RegistryFile, load, read_secret
from cluster.runtime import logs
from cluster.runtime.host.private_files import private
from cluster.runtime.output_file import OutputFile
from raftmq_wire.errors import ExitCode, LocalError, fix_label

# The name is a literal, because this module is named __main__ when it runs as a program.
logger = logging.getLogger("cluster.registry")
_LOG_BYTES_MAX, _LOG_FILES = 64 << 20, 3


async def run(file: RegistryFile) -> None:
    """Runs a process of the registry, with its port for clients, until SIGTERM or SIGINT. Raises ConfigError for bad
    settings, and OSError if an address cannot be bound."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = NameServer(file)
    try:
        await server.start()
        logger.info("%s serves", node_object(REGISTRY_GROUP, file.id))
        await stopped.wait()
    finally:
        await server.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs a name server; returns 0 after an orderly stop, 2 for bad settings, 5 if the installed pysyncobj is not the
    reviewed version, or if an address is taken."""
    parser = argparse.ArgumentParser(prog="python -m cluster.registry")
    parser.add_argument("--config", required=True, help="path of registry.toml")
    parser.add_argument("--log-file", help="the file that stdout and stderr are; it is kept within its size")
    options = parser.parse_args(arguments)
    output = OutputFile(Path(options.log_file), _LOG_BYTES_MAX, _LOG_FILES) if options.log_file else None
    try:
        with private():
            file = load(Path(options.config))
            read_secret(Path(file.secret_file))  # checked before any file is made
            check_installed()
            logs.setup("info", "text", f"registry {file.id}", output=output)
            asyncio.run(run(file))
    except ConfigError as error:
        return _say(str(error), ExitCode.USAGE)
    except LocalError as error:
        return _say("\n".join((error.what, error.why, error.fix)), error.exit_code)
    except OSError as error:
        return _say(f"the registry process cannot start\n{error}\nfree the address, and start again", ExitCode.REFUSED)
    return int(ExitCode.OK)


def _say(text: str, code: ExitCode) -> int:
    what, why, fix = text.split("\n", 2)
    print(f"{what}\nbecause: {why}\n{fix_label(fix)}{fix}", file=sys.stderr)  # noqa: T201
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
