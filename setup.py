"""Builds the native kernel; everything else about the package is in pyproject.toml.

The kernel is optional: where it cannot be built, the one in Python is used, and a sentence on stderr says what was
missing. `python setup.py build_ext --inplace` builds it next to its source.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("raftmq_wire/kernel/_native.pyx")
LOG = Path("build/kernel.log")
SHOWN_LINES = 8
"""Lines of the log that are shown when the build failed."""


def say(text: str) -> None:
    """Prints one sentence. Under pip it is shown with -v only, so `make setup` builds the kernel without pip."""
    sys.stderr.write(f"setup: {text}\n")


def missing() -> str:
    """Returns a sentence about what the build lacks; "" if nothing."""
    if os.environ.get("RAFTMQ_WITHOUT_KERNEL"):
        return "RAFTMQ_WITHOUT_KERNEL is set"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}) was found"
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        return f"there is no Python.h in {folder}"
    if importlib.util.find_spec("Cython") is None:
        return "Cython, which requirements/base.lock installs, is not there"
    return ""


@contextlib.contextmanager
def everything_to(log: Path) -> Iterator[None]:
    """Sends the output of this process and its children to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in enumerate(kept, 1):
            os.dup2(before, number)
            os.close(before)


class BuildKernel(build_ext):
    """Runs Cython, then the compiler. If either fails, the package is built without the native kernel."""

    def initialize_options(self) -> None:
        """Sets setuptools' defaults and has Cython write its C file below build/."""
        super().initialize_options()
        self.cython_c_in_temp = True  # the C file goes to build/, not beside the source

    def build_extension(self, ext: Extension) -> None:
        """Builds the extension as setuptools does, but does not raise: the extension is optional."""
        try:
            with everything_to(LOG):
                super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - Cython, distutils and the system each have errors of their own
            last = LOG.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
            say("\n".join([f"the native kernel was not built: {error}", *last]))
            say(f"the kernel in Python is used; everything that was printed is in {LOG.absolute()}")


def extensions() -> list[Extension]:
    """The kernel, if it can be built here; without it, the wheel is for any platform."""
    if lacks := missing():
        say(f"{lacks}: the kernel in Python is used, which takes more CPU time")
        return []
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    return [
        Extension(
            "raftmq_wire.kernel._native",
            [str(SOURCE)],
            define_macros=[("RAFTMQ_KERNEL_SOURCE", f'"{digest}"')],
            extra_compile_args=["-O2", "-g0", f"-ffile-prefix-map={Path.cwd()}=."],
            optional=True,
        )
    ]


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernel})
