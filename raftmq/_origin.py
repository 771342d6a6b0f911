"""Are the packages beside this one ours?

The folders of this distribution have generic names, and the public registry has distributions that install
`statemachine` and `cluster` too. Whichever comes first on `sys.path` wins, and one installed into the same
site-packages overwrites files of the other. Both would surface later as a puzzling AttributeError.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

OWN_PACKAGES = ("raftmq_wire", "raftlog", "statemachine", "cluster", "jepsen_like")

# The line that each of OWN_PACKAGES carries in its __init__.py.
MARK = b'__distribution__ = "raftmq"'

_HOME = Path(__file__).resolve().parent.parent


def check_own_packages(home: Path = _HOME) -> None:
    """Find each of OWN_PACKAGES without importing it.

    Args:
        home: the folder that holds `raftmq` and must hold the others.

    Raises:
        ImportError: a package is missing, comes from elsewhere or was overwritten. `name` and `path` say which
            package and what was found; the message also says what to do.
    """
    for name in OWN_PACKAGES:
        spec = _find(name)
        if spec is None or spec.origin is None or not spec.has_location:
            raise ImportError(_missing(name, home), name=name)
        found = Path(spec.origin).resolve()
        if found != home / name / "__init__.py":
            raise ImportError(_shadowed(name, found, home), name=name, path=str(found))
        if not _carries_mark(spec):
            raise ImportError(_overwritten(name, found), name=name, path=str(found))


def _find(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ValueError:  # already imported, and its __spec__ was cleared: not the work of our packages
        return None


def _carries_mark(spec: ModuleSpec) -> bool:
    get_data = getattr(spec.loader, "get_data", None)
    # A loader without sources (frozen, bytecode only) has nothing to compare; the location was right.
    return get_data is None or MARK in get_data(spec.origin)


def _missing(name: str, home: Path) -> str:
    return (
        f"raftmq needs its own package '{name}', and there is none in {home}.\n"
        f"  why: '{name}' is part of the raftmq distribution; uninstalling another distribution that has a package "
        f"'{name}' removes the shared files.\n"
        f" type: pip install --force-reinstall --no-deps raftmq"
    )


def _shadowed(name: str, found: Path, home: Path) -> str:
    owners = _owners(name)
    if owners:
        advice = f"pip uninstall {' '.join(owners)}   (or use a virtual environment without it)"
    else:
        advice = f"mv {found} elsewhere or rename it, or start Python from another folder"
    return (
        f"raftmq found a foreign '{name}': {found}{_from(owners)}.\n"
        f"  why: it comes before raftmq's own '{home / name}' on sys.path, so raftmq cannot load its own.\n"
        f" type: {advice}"
    )


def _overwritten(name: str, found: Path) -> str:
    owners = _owners(name)
    uninstall = f"pip uninstall {' '.join(owners)} && " if owners else ""
    return (
        f"raftmq's own '{name}' was overwritten: {found}{_from(owners)}.\n"
        f"  why: two distributions install a package '{name}' into the same folder; the later one wins.\n"
        f" type: {uninstall}pip install --force-reinstall --no-deps raftmq"
    )


def _from(owners: list[str]) -> str:
    return f" (from the distribution {', '.join(owners)})" if owners else ""


def _owners(name: str) -> list[str]:
    """Installed distributions, other than ours, that claim the top-level name."""
    from importlib.metadata import packages_distributions  # 20 ms, spent only where something is wrong

    return sorted({owner for owner in packages_distributions().get(name, []) if owner != "raftmq"})
