"""The command `rag eval`: questions with known answers, or a BEIR folder."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from pyrag.cli_common import (
    JsonOption,
    configuration,
    note,
    note_shown,
    print_citations,
    print_head,
    print_json,
    service_of,
    shown,
)
from pyrag.errors import InvalidConfiguration, InvalidRequest

if TYPE_CHECKING:
    from pyrag.beir import Comparison, Measured
    from pyrag.config import Settings
    from pyrag.evaluation import Outcome
    from pyrag.schemas import AskResponse
    from pyrag.service import Service


def evaluate(
    ctx: typer.Context,
    questions: Annotated[
        Path | None, typer.Option(help="YAML file of questions; default eval/questions.yaml.", metavar="FILE")
    ] = None,
    answers: Annotated[bool, typer.Option("--answers", help="Print each answer with its citations.")] = False,
    beir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Instead: the retrieval on a BEIR folder, in a database of its own."
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Of --beir: at most N questions of each kind, always the same."
        ),
    ] = None,
    off_topic: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of --beir: questions (jsonl) that the corpus does not answer."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Of --beir: leave out the documents that heldout.txt lists."),
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Of --beir: two settings, each NAME=VALUE[,NAME=VALUE…], in pairs."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of --beir: a plot as .png, .svg or .pdf.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write DIR/report.html: tables, plots, misses and why, in one page."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask all questions with known answers; exit 1 if one comes out wrong.

    The questions of eval/questions.yaml are about samples/acme-vault: the index should hold that vault alone.

    With --beir: nDCG, recall, MRR and latency of the search on any retrieval set; exit 0 whatever the scores.
    Needs no rag db init: the documents go to a database that is dropped at the end.
    """
    if beir is not None:
        if questions is not None or answers:
            raise InvalidRequest("--questions and --answers do not go with --beir")
        _evaluate_beir(ctx, beir, sample, off_topic, held_out, compare, plot, report, as_json)
        return
    given = {
        "--sample": sample, "--off-topic": off_topic, "--held-out": held_out or None, "--compare": compare,
        "--plot": plot,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None:
            raise InvalidRequest(f"{option} needs --beir", hint="Example: rag eval --beir FOLDER")
    _evaluate_questions(ctx, questions, answers, report, as_json)


# Questions with known answers ----------------------------------------------------------------------


def _evaluate_questions(
    ctx: typer.Context, questions: Path | None, answers: bool, report: Path | None, as_json: bool
) -> None:
    from pyrag.eval_report import check_report, report_questions
    from pyrag.evaluation import evaluate as run_evaluation
    from pyrag.evaluation import load_questions
    from pyrag.paths import data_path

    path = questions or data_path("eval") / "questions.yaml"
    loaded = load_questions(path)
    if report is not None:
        check_report(report)
    service = service_of(ctx)

    def show(outcome: Outcome) -> None:
        if as_json:
            return
        if answers:
            print(f"Q: {shown(outcome.question.question)}")
            _print_answer(outcome.response)
            print(f"{_verdict(outcome)}\n")
        else:
            print(f"{_verdict(outcome)}  {shown(f'{outcome.question.id}: {outcome.question.question}')}")

    outcomes = run_evaluation(service, loaded, show)
    misses = [outcome for outcome in outcomes if not outcome.right]
    if report is not None:
        explained = {each.question.id: service.explain(each.question.question) for each in misses}
        written = report_questions(report, path.name, _facts_of(service), outcomes, explained)
        note_shown(f"report: {written}")
    if as_json:
        print_json(
            {
                "threshold": _threshold(outcomes),
                "retrieval": service.settings.retrieval,
                "counted": len(outcomes),
                "misses": len(misses),
                "questions": [
                    {
                        **outcome.question.model_dump(),
                        "mode": outcome.response.mode,
                        "first_source": outcome.first_source,
                        "confidence": outcome.response.confidence,
                        "right": outcome.right,
                    }
                    for outcome in outcomes
                ],
            }
        )
    else:
        print(
            f"{len(outcomes) - len(misses)} of {len(outcomes)} right at threshold {_threshold(outcomes):.2f}"
            f" by {service.settings.retrieval} retrieval"
        )
    if misses:
        raise typer.Exit(1)


def _facts_of(service: Service) -> list[tuple[str, str]]:
    """Settings and index, as a report names them."""
    settings, index, status = service.settings, service.index, service.status()
    rows = service.database.list_calibrations(index)
    row = next((each for each in rows if each["in_force"] and each["retrieval"] == settings.retrieval), None)
    by_similarity = settings.retrieval == "vector" or row is None
    usual = settings.usual_similarity if settings.min_similarity is None else settings.min_similarity
    return [
        ("embeddings", f"{index.provider} {index.model}"),
        ("retrieval", settings.retrieval),
        ("chunks retrieved (RAG_TOP_K)", str(settings.top_k)),
        ("threshold", f"{usual if by_similarity else settings.min_confidence:.2f}"),
        (
            "calibration",
            f"{row['origin']}, fitted on {row['fitted_on']}" if row else "none: confidence is the similarity",
        ),
        ("model", f"{settings.llm_provider} {settings.llm_model}"),
        ("index", f"{status.documents} documents, {status.chunks} chunks"),
    ]


def _threshold(outcomes: list[Outcome]) -> float:
    """The threshold of these answers; a question without words may have another."""
    return median(outcome.response.threshold for outcome in outcomes)


def _verdict(outcome: Outcome) -> str:
    question, response = outcome.question, outcome.response
    word = "right" if outcome.right else "WRONG"
    got = f"{response.mode} {outcome.first_source or ''}".strip()
    text = f"{word}  {response.confidence:.4f}  {got}"
    if not outcome.right:
        text += f"  (expected {question.expected_mode} {', '.join(question.expected_sources)}".rstrip() + ")"
    return shown(text)


def _print_answer(response: AskResponse) -> None:
    print_head(response)
    print("\n".join(shown(line) for line in response.answer.split("\n")))
    print_citations(response)


# A BEIR folder -------------------------------------------------------------------------------------


def _evaluate_beir(
    ctx: typer.Context,
    folder: Path,
    sample: int | None,
    off_topic: Path | None,
    held_out: bool,
    compare: tuple[str, str] | None,
    plot: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    from pyrag.beir import compare as compare_results
    from pyrag.beir import evaluate_settings, load_dataset
    from pyrag.eval_plot import check_plot, write_plot
    from pyrag.eval_report import MISSES, check_report, report_retrieval
    from pyrag.progress import progress_bar, question_bar
    from pyrag.service import open_database

    settings = configuration(ctx).settings
    chosen = [_settings_of(ctx, text) for text in compare] if compare else [settings]
    if plot is not None:
        check_plot(plot)
    if report is not None:
        check_report(report)
    dataset = load_dataset(folder, note_shown, off_topic=off_topic, held_out=held_out).sampled(sample)
    asked = (len(dataset.answerable) + len(dataset.unanswerable)) * len(chosen)
    server = open_database(settings, note)
    note_shown(f"{dataset.name}: storing {len(dataset.passages)} documents, then {asked} searches")
    explain = MISSES if report is not None else 0
    results = evaluate_settings(dataset, chosen, server, note_shown, progress_bar, question_bar, explain)
    comparison = compare_results(*results) if compare else None
    names = compare or (f"{results[0].provider} {results[0].model}",)
    named = list(zip(names, results, strict=True))
    if plot is not None:
        write_plot(plot, named)
    if report is not None:
        note_shown(
            f"report: {report_retrieval(report, [('folder', str(folder.resolve()))], named, comparison)}"
        )
    if as_json:
        body = results[0].summary()
        if compare and comparison:
            about = {
                "a": compare[0],
                "b": compare[1],
                **comparison.summary(),
                "b_result": results[1].summary(),
            }
            body["compare"] = about
        print_json(body)
        return
    _print_results(results)
    if compare and comparison:
        _print_comparison(compare, comparison)
    if plot is not None:
        print(f"plot: {shown(str(plot))}")


def _settings_of(ctx: typer.Context, text: str) -> Settings:
    """The settings with those of `NAME=VALUE,…` laid over them. Raises `InvalidRequest` for others."""
    from pyrag.config import Settings, load_configuration

    allowed = {
        str(field.alias)
        for field in Settings.model_fields.values()
        if str(field.alias).startswith(("RAG_", "EMBEDDING_"))
    }
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value or name not in allowed or name in given:
            raise InvalidRequest(
                f"--compare {text!r}: {part.strip()!r} is not NAME=VALUE of a setting that can be compared",
                hint="Names of RAG_ and EMBEDDING_, as in RAG_RETRIEVAL=vector,RAG_MIN_SIMILARITY=0.3",
            )
        given[name] = value
    try:
        return load_configuration(ctx.obj, {**os.environ, **given}).settings
    except InvalidConfiguration as error:
        raise InvalidRequest(f"--compare {text!r}: {error.message}") from None


def _print_results(results: list[Measured]) -> None:
    """A table with a column for each result."""
    first = results[0]
    about = f"{len(first.dataset.answerable)} questions, {first.documents} documents"
    if first.dataset.unanswerable:
        about += f", {len(first.dataset.unanswerable)} questions without an answer"
    print(f"{shown(first.dataset.name)}: {about}; {first.provider} {shown(first.model)}\n")
    rows: dict[str, list[str]] = {"retrieval": [result.retrieval for result in results]}
    for result in results:
        for name, value in result.metrics.items():
            rows.setdefault(name, []).append(f"{value:.4f}")
        for name, value in result.latency.items():
            rows.setdefault(f"search {name}, ms", []).append(f"{value:.1f}")
        if refusal := result.refusal:
            rows.setdefault("auroc", []).append(f"{refusal.auroc:.4f}")
            rows.setdefault("wrong answers", []).append(f"{refusal.wrong_answers:.1%}")
            rows.setdefault("wrong refusals", []).append(f"{refusal.wrong_refusals:.1%}")
            rows.setdefault("threshold", []).append(f"{refusal.threshold:.2f}")
    if len(results) > 1:
        print(" " * 18 + "".join(f"{letter:>9}" for letter in "AB"))
    for name, values in rows.items():
        print(f"{name:<18}" + "".join(f"{value:>9}" for value in values))


def _print_comparison(names: tuple[str, str], comparison: Comparison) -> None:
    print()
    for letter, name in zip("AB", names, strict=True):
        print(f"{letter}: {shown(name)}")
    print(
        f"nDCG@10 of B less that of A: {comparison.mean_difference:+.4f}; B is better for {comparison.wins}"
        f" questions, worse for {comparison.losses}, equal for {comparison.ties};"
        f" sign test p = {comparison.p_value:.2g}"
    )
    if comparison.regressions:
        print("\nquestions that got worst:")
    for each in comparison.regressions:
        print(f"{each.first:.2f} -> {each.second:.2f}  {shown(each.id)}: {shown(each.question)}")
        hits = f"A first: {each.first_hit or 'none'}, B first: {each.second_hit or 'none'}"
        print(f"    {shown(hits)}, relevant: {shown(', '.join(each.relevant))}")
