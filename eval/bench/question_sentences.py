"""Questions among other sentences: wrong answers and wrong refusals by the number of sentences.

Each question that a set answers, and each that it does not (`../shared/evalsets/offtopic`), is asked alone
and between 1, 2, 4 and 8 other questions that the set does not answer. Prints AUROC of the confidence, wrong
answers and wrong refusals. Needs `../shared`:

    python eval/bench/question_sentences.py [--questions 150]
"""

from __future__ import annotations

import argparse
import random
import sys
from contextlib import nullcontext
from pathlib import Path

from pyrag.beir import auroc, load_dataset, stored_corpus
from pyrag.config import load_configuration
from pyrag.ingest import Silent
from pyrag.service import Service, open_database

SETS = {
    "xquad-en": "xquad-en__asked-by__musique-200.jsonl",
    "cmrc2018-trial": "cmrc2018-trial__asked-by__xquad-zh.jsonl",
}
OTHERS = (0, 1, 2, 4, 8)


def main() -> None:
    """Stores each set in a throw-away database and asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=150, help="of each kind and number of sentences")
    arguments = parser.parse_args()
    folder = Path(__file__).resolve().parents[3] / "shared" / "evalsets"
    if not folder.is_dir():
        sys.exit(f"{folder} is absent: this needs the retrieval sets")
    settings = load_configuration().settings
    server = open_database(settings, lambda text: print(text, file=sys.stderr))
    chosen = random.Random(3)
    print("| set | sentences | AUROC | wrong answers | wrong refusals |\n|---|---|---|---|---|")
    for name, strangers in SETS.items():
        dataset = load_dataset(folder / name, lambda text: None, off_topic=folder / "offtopic" / strangers)
        others = list(dataset.unanswerable.values())
        with stored_corpus(dataset, server) as (corpus, database):
            service = Service(settings, database)
            corpus.ingest(service, lambda text: None, lambda: nullcontext(Silent()))
            for number in OTHERS:
                confidences: dict[bool, list[float]] = {}
                answered: dict[bool, int] = {}
                for known, pool in ((True, list(dataset.answerable.values())), (False, others)):
                    decisions = []
                    for question in chosen.sample(pool, arguments.questions):
                        sentences = [*chosen.sample(others, number), question]
                        chosen.shuffle(sentences)
                        decisions.append(service.find(" ".join(sentences))[1])
                    confidences[known] = [each.confidence for each in decisions]
                    answered[known] = sum(each.mode == "rag" for each in decisions)
                print(
                    f"| {name} | {number + 1} | {auroc(confidences[True], confidences[False]):.3f}"
                    f" | {answered[False] / arguments.questions:.0%}"
                    f" | {1 - answered[True] / arguments.questions:.0%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
