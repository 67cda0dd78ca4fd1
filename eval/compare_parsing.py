"""Headings, tags and links of notes, read by pyrag and by parsers that share no code with it. Test only.

    python eval/compare_parsing.py VAULT [--notes 20]

Draws notes by the SHA-256 of their relative path, so that anyone draws the same ones. Two readings are
independent of pyrag (which stands on markdown-it-py and a scanner of its own):

- marko: a CommonMark 0.31 and GFM parser, with wikilinks and tags written from Obsidian's help, not from
  pyrag; gives headings (outside lists and quotes, as the contract wants), tags, links with heading and alias.
- obsidiantools: Python-Markdown, HTML to text, and regular expressions; gives tags, and targets of links. It
  takes every `#part` of a Markdown link's URL for a tag.

Prints a line for each difference and a summary for each parser and kind. A difference is no bug: CommonMark,
GFM and Obsidian's help decide. Needs `pip install marko obsidiantools`; no other part of pyrag does.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml

from pyrag.markdown import parse_note
from pyrag.models import Link
from pyrag.vault import NoteError, decode, read_note, resolve_vault, scan_vault

Reading = dict[str, list[str]]  # kind to what was found, in the order of the note
KINDS = ("heading", "tag", "link")
FRONTMATTER = re.compile(r"\A---[ \t]*\n(?:(.*?)\n)?---[ \t]*(?:\n|\Z)", re.DOTALL)


def ours(text: str) -> Reading:
    """What pyrag reads; a tag once in the frontmatter, and in the body at every place it stands."""
    note = parse_note(text)
    tags = [tag for section in note.sections for _, tag in section.tag_marks]
    return {
        "heading": [f"{'#' * each.level} {each.heading}" for each in note.sections if each.level],
        "tag": [*note.tags, *tags],
        "link": [_spelled(link) for section in note.sections for link in section.links],
    }


def _spelled(link: Link) -> str:
    place = [*link.heading, *([f"^{link.block}"] if link.block else [])]
    target = "#".join([link.target.removesuffix(".md"), *place])
    return f"{'!' * link.embed}{target}{f'|{link.alias}' if link.alias else ''}"


def marko_reading() -> Callable[[Path, str], Reading]:
    """A reader by marko."""
    gfm, inline = _load("marko.ext.gfm").GFM, _load("marko.inline")
    fields = {"parse_children": False, "parse_group": 0, "priority": 6}
    wikilink = {**fields, "pattern": re.compile(r"!?\[\[[^\[\]\n]+\]\]")}
    tag = {**fields, "pattern": re.compile(r"(?<!\S)#(?=[\d/]*[^\W\d]|[\d/]*[-_])[\w/-]+")}
    own = [type(name, (inline.InlineElement,), each) for name, each in (("Wiki", wikilink), ("Tag", tag))]
    extension = _load("marko.helpers").MarkoExtension(elements=own)
    parser = _load("marko").Markdown(extensions=[gfm, extension])

    def read(path: Path, text: str) -> Reading:
        front = FRONTMATTER.match(text)
        document = parser.parse(text[front.end() if front else 0 :])
        found = list(_walk(document))
        headings = [each for each in document.children if _name(each) in ("Heading", "SetextHeading")]
        tags = [each.children[1:].strip("/") for each in found if _name(each) == "Tag"]
        return {
            "heading": [f"{'#' * each.level} {_plain(each)}" for each in headings],
            "tag": [*_property_tags(_properties(front[1] or "") if front else None), *tags],
            "link": [_wikilink(each.children) for each in found if _name(each) == "Wiki"],
        }

    return read


def _name(element: Any) -> str:
    return type(element).__name__


def _walk(element: Any) -> Iterator[Any]:
    yield element
    if not isinstance(children := getattr(element, "children", ()), str):
        for child in children:
            yield from _walk(child)


def _plain(heading: Any) -> str:
    """The text of a heading as a reader sees it."""
    parts = []
    for each in _walk(heading):
        if _name(each) == "Wiki":
            parts.append(each.children.strip("![]").split("|")[-1])
        elif isinstance(getattr(each, "children", None), str) and _name(each) != "InlineHTML":
            parts.append(each.children)
    return " ".join("".join(parts).split())


def _wikilink(source: str) -> str:
    page, _, alias = source.lstrip("!").strip("[]").partition("|")
    target = "#".join(part.strip() for part in page.split("#")).removesuffix(".md")
    return f"{'!' * source.startswith('!')}{target}{f'|{alias.strip()}' if alias.strip() else ''}"


def _properties(block: str) -> Any:
    try:
        return yaml.safe_load(block)
    except yaml.YAMLError:  # such as {{a template}}: no properties
        return None


def _property_tags(values: Any) -> list[str]:
    """The tags of the properties; a list, or one string with commas (Obsidian help, "Tags")."""
    found = []
    for key in ("tags", "tag"):
        raw = values.get(key) if isinstance(values, dict) else None
        words = raw.split(",") if isinstance(raw, str) else raw or []
        found += [str(word).strip().removeprefix("#") for word in words if str(word or "").strip()]
    return found


def obsidiantools_reading() -> Callable[[Path, str], Reading]:
    """A reader by obsidiantools, of the file itself."""
    utils = _load("obsidiantools.md_utils")

    def read(path: Path, text: str) -> Reading:
        tags = [*_property_tags(utils.get_front_matter(path)), *utils.get_tags(path, show_nested=True)]
        return {
            "tag": [tag.rstrip("/") for tag in tags],
            "link": [*utils.get_wikilinks(path), *(f"!{name}" for name in utils.get_embedded_files(path))],
        }

    return read


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        sys.exit(f"{error}. Install the parsers to compare with: pip install marko obsidiantools")


def differences(mine: list[str], theirs: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs that are not equal, `-` where one side has nothing."""
    for what, a, b, c, d in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        if what != "equal":
            for index in range(max(b - a, d - c)):
                yield (mine[a + index] if a + index < b else "-", theirs[c + index] if c + index < d else "-")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vault")
    parser.add_argument("--notes", type=int, default=20)
    options = parser.parse_args()
    readers = {"marko": marko_reading(), "obsidiantools": obsidiantools_reading()}
    entries = scan_vault(resolve_vault(options.vault))
    entries.sort(key=lambda entry: hashlib.sha256(entry.relative_path.encode()).digest())
    counts = {(name, kind): [0, 0] for name in readers for kind in KINDS}
    for entry in entries[: options.notes]:
        path = Path(entry.file_path)
        try:
            text = decode(read_note(path)[0]).replace("\r\n", "\n")
        except (OSError, NoteError) as error:
            print(f"{entry.relative_path}\tnot read: {error}")
            continue
        mine = ours(text)
        for name, read in readers.items():
            for kind, theirs in read(path, text).items():
                own = mine[kind]
                if (name, kind) == ("obsidiantools", "link"):  # targets only, embeds last
                    own = [re.split(r"[#|]", link)[0] for link in own]
                    own.sort(key=lambda link: link[:1] == "!")
                found = list(differences(own, theirs))
                counts[name, kind][0] += max(len(own), len(theirs))
                counts[name, kind][1] += len(found)
                for left, right in found:
                    print(f"{entry.relative_path}\t{kind}\tpyrag: {left}\t{name}: {right}")
    for (name, kind), (compared, different) in counts.items():
        if compared:
            equal = compared - different
            print(f"{name:14} {kind:8} compared {compared:5}  equal {equal:5}  different {different:5}")


if __name__ == "__main__":
    main()
