"""Reads registry.toml, the file with the settings of one registry process, and derives the password that all registry
processes share."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
import uuid
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.address import join_address, split_address
from cluster.config.source import ConfigError
from cluster.registry.frames import RegistrySettings
from cluster.registry.records import NODES_MAX
from cluster.runtime.key_file import FILE_MAX, KeyFileError, parse

_Port = Annotated[int, Meta(ge=1, le=65535)]
_Text = Annotated[str, Meta(min_length=1, max_length=255)]


class RegistryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one process. Paths are relative to the folder of the file until `load` has made them absolute."""

    id: Annotated[int, Meta(ge=1, le=NODES_MAX)]
    cluster_id: uuid.UUID
    """The uuid of the cluster (cluster_id in raftmq status --json)."""
    secret_file: _Text
    """The path of the file with the cluster's secret, in the same format as on the nodes."""
    data_dir: _Text
    processes: Annotated[list[_Text], Meta(min_length=1, max_length=NODES_MAX)]
    """The "host:port" at which the registry's processes reach each other, in the order of their ids."""
    port: _Port
    """The port for clients."""
    peer_port: _Port
    """The port where nodes register: cluster.registry of their configuration names it."""
    bind: _Text = "127.0.0.1"
    """The address at which this process listens, on all its ports."""
    listener: _Text = "broker"
    """The name of the listener of the nodes to which this process passes clients' requests."""

    def settings(self, keys: tuple[bytes, ...]) -> RegistrySettings:
        """Returns the settings of the child process with pysyncobj. `keys`: the keys of the secret, newest first."""
        addresses = dict(enumerate(self.processes, 1))
        bind = join_address(self.bind, split_address(addresses[self.id])[1])
        return RegistrySettings(
            self.data_dir, self.cluster_id.bytes, self.id, addresses, bind, password_of(keys[0], self.cluster_id)
        )


def password_of(key: bytes, cluster: uuid.UUID) -> str:
    """Returns the password with which the registry's processes talk to each other. It is derived from the cluster's
    secret, and the secret cannot be derived from it."""
    return hmac.new(key, b"raftmq registry 10" + cluster.bytes, hashlib.sha256).hexdigest()


def load(path: Path) -> RegistryFile:
    """Reads and checks the file at `path`. Raises ConfigError if it cannot be used."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), RegistryFile)
        for address in found.processes:
            split_address(address)
        if found.id > len(found.processes):
            raise ValueError(f"id is {found.id}, and processes has {len(found.processes)} addresses")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", error.strerror or str(error), f"ls -l {path}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} cannot be used", str(error), f"correct {path}, and start again") from None
    places = {name: str((path.parent / getattr(found, name)).absolute()) for name in ("secret_file", "data_dir")}
    return msgspec.structs.replace(found, **places)


def read_secret(path: Path) -> tuple[bytes, ...]:
    """Returns the keys in the secret file, newest first. Raises ConfigError if the file cannot be used."""
    try:
        with path.open("rb") as file:
            return parse(file.read(FILE_MAX + 1))
    except (OSError, KeyFileError) as error:
        why = str(error) if isinstance(error, KeyFileError) else error.strerror or str(error)
        raise ConfigError(
            f"{path}: cannot be read as the secret of the cluster",
            why,
            "copy the file from a node of the cluster, with mode 0600",
        ) from None
