"""Prepares the site: pages from the top of the repository, links to its files, and the link to its source.

mkdocs.yml lists this file as a hook. CONTRIBUTING.md, CHANGELOG.md and SECURITY.md stand at the top of the repository,
where people look for them, and become pages of the site as well. Pages link to files that are no pages, such as results of
benchmarks; those files are copied into the site, so that every link works there too.

The address of the source is the environment variable SOURCE_URL, else the address of the git remote `origin` if that is a
web address, else the page that lists the modules.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOP_PAGES = {ROOT / f"{name}.md": f"project/{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
FILES = "files"
"""Folder of the site that holds copies of files of the repository."""
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")


def on_config(config: Any) -> Any:
    """Sets the link to the source."""
    address = os.environ.get("SOURCE_URL") or remote_address()
    config.repo_url = address or "modules/"
    config.repo_name = "Source"
    if address:
        config.edit_uri = "edit/main/docs/"
    return config


def remote_address() -> str | None:
    """Returns the web address of the remote `origin`, or None if there is none."""
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return None
    found = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", found)
    return found.removesuffix(".git") if found.startswith("https://") else None


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages from the top of the repository, and the files that any page links to."""
    for path, address in TOP_PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(path)))
    sources = [*TOP_PAGES, *DOCS.rglob("*.md")]
    linked = {target for page in sources for target in linked_files(page) if address_of(target).startswith(FILES)}
    for target in sorted(linked):
        files.append(File.generated(config, address_of(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of a page that lead out of docs, or come from the top of the repository."""
    source = next((path for path, address in TOP_PAGES.items() if address == page.file.src_uri), None)
    source = source or DOCS / page.file.src_uri
    return rewrite_links(markdown, source, page.file.src_uri)


def rewrite_links(markdown: str, source: Path, address: str) -> str:
    """Returns the text of the page `source`, with links that hold at `address` on the site."""

    def replace(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if not target.is_file():
            return found[0]
        here = PurePosixPath(address).parent
        there = os.path.relpath(address_of(target), here)
        return f"{found[1]}{there}{found[3] or ''}{found[4]}"

    return _LINK.sub(replace, markdown)


def linked_files(page: Path) -> list[Path]:
    """Returns the files of the repository that a page links to."""
    targets = [(page.parent / found[2]).resolve() for found in _LINK.finditer(page.read_text())]
    return [target for target in targets if target.is_file()]


def address_of(target: Path) -> str:
    """Returns where the site has a file of the repository."""
    if target in TOP_PAGES:
        return TOP_PAGES[target]
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = target.relative_to(ROOT).as_posix()
    return f"{FILES}/{name}.txt" if target.suffix in (".md", ".py") else f"{FILES}/{name}"
