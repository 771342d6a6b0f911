"""Splits and joins addresses of configuration files: "host:port", with brackets around an IPv6 address."""

from __future__ import annotations


def split_address(text: str) -> tuple[str, int]:
    """Splits "host:port" or "[v6]:port" into (host, port). Raises ValueError if the text is neither."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f'"{text}" is not host:port')
    if ":" in bare and bare == host:
        raise ValueError(f'"{text}" needs brackets around its IPv6 address: [{host}]:{port}')
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Joins host and port to "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
