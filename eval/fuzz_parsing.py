"""Random notes through frontmatter, parser and chunker: no crash, no chunk above 1,200 tokens, nothing lost.

    python eval/fuzz_parsing.py --minutes 10 [--seed 1]

Notes are put together from fragments that are hard to read: fences, tables, nested lists, links, comments,
odd characters, halves of characters, YAML. A failure ends the run with exit code 1.
The last line says how many notes were read and the slowest of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

from pyrag.chunking import chunk_note
from pyrag.markdown import parse_note
from pyrag.tokens import count_tokens
from pyrag.vault import NoteError, decode

FRAGMENTS = [
    "---\n", "---\ntags: [a, b]\n---\n", "title: x\n", "a: &a [*a]\n", "? [x]\n: y\n", "# ", "## A\n", "###### f\n",
    "====\n", "----\n", "```sh\n", "````\n", "~~~\n", "    code\n", "\t", "> ", "> [!note] x\n", "- ", "  - [ ] ", "1. ",
    "| a | b |\n| - | - |\n", "| c | d\\| |\n", "[[Page|alias]]", "![[p.png|300]]", "[[", "]]", "[a](b)", "[r]: x\n",
    "#tag ", "#1 ", "#数据库/向量", "%%", "<!--", "-->", "<div>\n", "$$", "\n$$\n", "\n%%\n", "<%", "%>", "[^1]: ", "\n    ", "<?", "<a b='", "`", "``", "**", "==", "~~", "\\", "&amp;",
    "词语。", "这是一个很长的句子，没有空格；", "word ", "Sentence one. ", "\n", "\n\n", "\r\n", "\u2028", "\u00a0",
    "\u3000", "\ufeff", "\0", "\x1b[2J", "👨‍👩‍👧", "e\u0301", "\U0001f1e9\U0001f1ea", "<|endoftext|>", "a" * 700, "字" * 500,
    " " * 300, "https://example.test/" + "q" * 200, "{{date}}", "\u202e", "\ud83d", "- x\n" * 60, "| y | z |\n" * 80,
    "x = 1\n" * 200, "{#id}", "^block\n", "[^1]", "[^1]: note\n",
]  # fmt: skip


def problem(text: str) -> str | None:
    """What is wrong with the chunks of this text, if anything is."""
    note = parse_note(text)
    json.dumps(dict(note.frontmatter), allow_nan=False).encode()
    chunks = chunk_note(note)
    if chunks != chunk_note(parse_note(text)):
        return "a second reading gives something else"
    joined = []
    for chunk in chunks:
        if not chunk.content.strip():
            return "a blank chunk"
        if chunk.token_count != count_tokens(chunk.content) or chunk.token_count > 1200:
            return f"a chunk counts {chunk.token_count} tokens"
        joined.append(chunk.content.encode().decode())
    seen = iter("".join("".join(joined).split()))
    for char in "".join("".join(note.lines).split()):
        if char not in seen:
            return f"{char!r} is lost"
    return None


def main() -> None:
    """Runs for the time given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    notes = characters = 0
    slowest = (0.0, 0, 0)
    while time.monotonic() < end:
        generator = random.Random(f"{arguments.seed}:{notes}")
        size = generator.choice([5, 30, 200, 1500])
        text = "".join(generator.choice(FRAGMENTS) for _ in range(generator.randrange(1, size)))
        raw = text.encode("utf-8", "surrogatepass")
        begun = time.process_time()
        try:
            text = decode(raw)
        except NoteError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        wrong = problem(text)
        slowest = max(slowest, (time.process_time() - begun, len(text), notes))
        if wrong:
            print(f"seed {arguments.seed}, note {notes}: {wrong}: {text[:300]!r} …")
            sys.exit(1)
        notes += 1
        characters += len(text)
    seconds, length, number = slowest
    print(
        f"{notes} notes, {characters} characters, no failure; slowest: note {number}, {seconds:.2f} s of"
        f" processor time for {length} characters (read twice, and checked)"
    )


if __name__ == "__main__":
    main()
