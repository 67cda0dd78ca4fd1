"""Fits the calibration that pyrag ships, on the sets of ../shared/evalsets, and says how far it carries over.

    python eval/fit_calibration.py [--save SIGNALS.jsonl] [--load SIGNALS.jsonl]

Asks about 26,000 questions in throw-away databases on the server of the settings (about ten minutes). Every
set is asked by its own questions and by strangers, once whole and once by half; besides it gives small bases
of 1, 2, 9 and 40 passages, asked by the questions about them and by 40 others. Each base, kind and class
counts the same. The sample vault takes no part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from pyrag.beir import Dataset, auroc, load_dataset, stored_corpus
from pyrag.calibration import (
    ANSWERABLE,
    Case,
    Share,
    Weights,
    balance,
    figures,
    fit_weights,
    losses,
    out_of_fold,
)
from pyrag.config import load_configuration
from pyrag.ingest import Silent
from pyrag.labelled import Labelled, leave_half_out
from pyrag.service import Service, open_database

SETS = Path(__file__).resolve().parents[2] / "shared" / "evalsets"
NAMES = ("cmrc2018-trial", "xquad-zh", "xquad-en")
BASES = {1: 12, 2: 10, 9: 6, 40: 2}  # passages: how many such bases of each set
GROUPS = ("off-topic", "held-out", *(str(size) for size in BASES))
RETRIEVALS = ("lexical", "hybrid")


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def bases() -> Iterator[tuple[str, str, Dataset]]:
    """Sets and parts of sets with questions of both classes: set, group, what is asked of what."""
    off = SETS / "offtopic"
    strangers = {
        "cmrc2018-trial": off / "cmrc2018-trial__asked-by__xquad-zh.jsonl",
        "xquad-en": off / "xquad-en__asked-by__musique-200.jsonl",
    }
    whole = {name: load_dataset(SETS / name, note, off_topic=strangers.get(name)) for name in NAMES}
    others = replace(whole["cmrc2018-trial"], unanswerable={}).sampled(500).answerable
    whole["xquad-zh"] = replace(whole["xquad-zh"], unanswerable=others)
    for name, dataset in whole.items():
        yield name, "off-topic", dataset
        if (SETS / name / "heldout.txt").exists():
            yield name, "held-out", load_dataset(SETS / name, note, held_out=True)
        else:
            yield name, "held-out", leave_half_out(replace(dataset, unanswerable={}))
        for size, times in BASES.items():
            for number in range(times):
                yield name, str(size), small_base(dataset, size, f"{size} {number} ")


def small_base(dataset: Dataset, size: int, salt: str) -> Dataset:
    """So many passages with up to 60 questions about them and 40 about others, chosen by hash."""

    def shuffled(keys: Sequence[str]) -> list[str]:
        return sorted(keys, key=lambda key: hashlib.sha256((salt + key).encode()).digest())

    kept = set(shuffled([*dataset.passages])[:size])
    about = [key for key, judged in dataset.qrels.items() if judged.keys() <= kept][:60]
    strange = shuffled([key for key, judged in dataset.qrels.items() if not judged.keys() & kept])[:40]
    return replace(
        dataset,
        passages={key: each for key, each in dataset.passages.items() if key in kept},
        answerable={key: dataset.answerable[key] for key in about},
        qrels={key: dataset.qrels[key] for key in about},
        unanswerable={key: dataset.answerable[key] for key in strange},
    )


def collect() -> dict[str, list[Case]]:
    """The cases of both ways of retrieval; the base of a case is `set group`."""
    settings = load_configuration().settings
    server = open_database(settings, note)
    found = {retrieval: Labelled() for retrieval in RETRIEVALS}
    for name, group, dataset in bases():
        note(f"{name} {group}: {len(dataset.passages)} passages")
        with stored_corpus(dataset, server) as (corpus, database):
            for retrieval, labelled in found.items():
                service = Service(settings.model_copy(update={"asked_retrieval": retrieval}), database)
                corpus.ingest(service, note, lambda: nullcontext(Silent()))
                for kind, asked in ((ANSWERABLE, dataset.answerable), (group, dataset.unanswerable)):
                    for key, question in asked.items():
                        labelled.add(service, kind, key, question, f"{name} {group}")
    return {retrieval: labelled.cases for retrieval, labelled in found.items()}


def row(cases: Sequence[Case], confidences: Sequence[float]) -> str:
    """AUROC, wrong answers and wrong refusals at 0.5 as cells of a table."""
    yes = [each for case, each in zip(cases, confidences, strict=True) if case.answerable]
    no = [each for case, each in zip(cases, confidences, strict=True) if not case.answerable]
    answers = Share(sum(each >= 0.5 for each in no), len(no))
    refusals = Share(sum(each < 0.5 for each in yes), len(yes))
    return f"{auroc(yes, no):.4f} | {answers.value:.1%} | {refusals.value:.1%} |"


def report(retrieval: str, cases: Sequence[Case]) -> None:
    """Prints the figures of each set by weights of the other two, and the row to ship."""
    yes = sum(case.answerable for case in cases)
    print(f"\n## {retrieval}: {yes} answerable, {len(cases) - yes} unanswerable questions")
    for similarity in (False, True):
        across_sets(cases, similarity)
    weights = fit_weights(cases, None, similarity=False)
    confidences = out_of_fold(cases, lambda part: fit_weights(part, None, similarity=False))
    print("\n| all sets, out of fold | AUROC | wrong answers | wrong refusals |\n|---|---|---|---|")
    for group in GROUPS:
        chosen = [number for number, case in enumerate(cases) if case.base.endswith(f" {group}")]
        cells = row([cases[number] for number in chosen], [confidences[number] for number in chosen])
        print(f"| {group} | {cells}")
        if group == "off-topic":
            at_half = figures([cases[n] for n in chosen], [confidences[n] for n in chosen], 0.5)
    half = next(each for each in at_half.errors if each.threshold == 0.5)
    print(
        f"\nrow: {rounded(weights)}, {yes}, {len(cases) - yes}, {at_half.auroc:.4f},"
        f" {half.wrong_answers.value:.4f}, {half.wrong_refusals.value:.4f}"
    )


def across_sets(cases: Sequence[Case], similarity: bool) -> None:
    """Prints how each set comes out by weights fitted on the other two."""
    print(f"\nEach set by weights of the other two, {'with' if similarity else 'without'} similarity:\n")
    print("| set | group | AUROC | wrong answers | wrong refusals | weights |\n|---|---|---|---|---|---|")
    ratio = fit_weights(cases, None, similarity=False).cjk_ratio
    seen: list[Case] = []
    confidences: list[float] = []
    for name in NAMES:
        rest = [case for case in cases if not case.base.startswith(f"{name} ")]
        # without xquad-en there is one language only, and the ratio of all is kept
        weights = fit_weights(rest, ratio if name == "xquad-en" else None, similarity)
        for group in GROUPS:
            part = [case for case in cases if case.base == f"{name} {group}"]
            found = [weights.probability(case) for case in part]
            print(f"| {name} | {group} | {row(part, found)} {rounded(weights)} |")
            seen += part
            confidences += found
    counts = balance(seen)
    loss = sum(n * each for n, each in zip(counts, losses(seen, confidences), strict=True)) / sum(counts)
    print(f"\nlog loss, every set and group counting the same: {loss:.4f}")


def rounded(weights: Weights) -> str:
    """Intercept and weights of similarity, coverage and CJK share."""
    return ", ".join(f"{each:.2f}" for each in weights.as_list())


def main() -> None:
    """Collects or loads the signals, then reports."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--save", type=Path, help="keep the signals in this file")
    parser.add_argument("--load", type=Path, help="take the signals from this file instead of asking")
    options = parser.parse_args()
    if options.load:
        lines = [json.loads(line) for line in options.load.read_text(encoding="utf-8").splitlines()]
        found = {r: [Case(**case) for kind, case in lines if kind == r] for r in RETRIEVALS}
    elif SETS.is_dir():
        found = collect()
    else:
        sys.exit(f"{SETS} is absent: the shipped calibration can only be fitted with these sets")
    if options.save:
        with options.save.open("w", encoding="utf-8") as out:
            for retrieval, cases in found.items():
                for case in cases:
                    print(json.dumps([retrieval, asdict(case)], ensure_ascii=False), file=out)
    for retrieval, cases in found.items():
        report(retrieval, cases)


if __name__ == "__main__":
    main()
