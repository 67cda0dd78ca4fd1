"""`rag calibrate`: fits confidence to one's own questions, and says whether that may be put in force."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrag.cli_common import JsonOption, configuration, note, note_shown, print_json, shown
from pyrag.errors import InvalidRequest, PyragError, SchemaNotInitialized

if TYPE_CHECKING:
    from pyrag.calibration import Errors, Figures, Share, Weights
    from pyrag.calibration_report import Report
    from pyrag.config import Settings
    from pyrag.service import Service


def calibrate(
    ctx: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[QUESTIONS.yaml|BEIR-DIR]", help="Questions with known answers."),
    ] = None,
    off_topic: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="More questions (jsonl: _id, text) that have no answer here."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Ask the answerable ones also without the notes that answer them."),
    ] = False,
    put: Annotated[bool, typer.Option("--set", help="Put the result in force.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Take your own calibration out of force: the shipped one counts.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="List the calibrations there are.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plot as .png, .svg or .pdf, such as calibration.png."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the confidence of answers to your own questions; changes nothing without --set.

    QUESTIONS.yaml (as for rag eval) is asked of your index: expected_mode rag must be answered, no_answer
    refused. A BEIR folder (as for rag eval --beir) is stored in a database that is dropped at the end; its
    result counts for the provider, model and retrieval of your settings.

    Reports AUROC, wrong answers and wrong refusals on questions that were not fitted on. Exit 1, and nothing
    is set, when questions are missing or the classes do not separate. Needs the extra calibrate.
    """
    if sum((source is not None, drop, show)) != 1:
        raise InvalidRequest(
            "name a file or folder of questions, or one of --drop and --show",
            hint="Example: rag calibrate questions.yaml --held-out",
        )
    if source is None:
        if off_topic is not None or held_out or put or plot is not None:
            raise InvalidRequest("--off-topic, --held-out, --set and --plot need questions")
        (_drop if drop else _show)(configuration(ctx).settings, as_json)
        return
    settings = configuration(ctx).settings
    if settings.retrieval == "vector":
        reason = "retrieval by vectors alone has no calibration, its confidence is the similarity"
        if as_json:
            print_json({"missing": [reason], "set": False})
        note(f"cannot be set: {reason}")
        note("  Set RAG_RETRIEVAL=lexical or hybrid; the threshold of vector is RAG_MIN_SIMILARITY.")
        raise typer.Exit(1)
    service, report = _report(settings, source, off_topic, held_out, put, plot)
    stored, failure = False, None
    if put and not report.missing:
        try:
            _store(service, report)
            stored = True
        except PyragError as error:
            failure = error  # the report comes first: it may have taken long
    if as_json:
        print_json({**report.summary(), "set": stored})
    else:
        _print_report(report)
    if plot is not None and report.fit is not None:
        note(f"plot: {shown(str(plot))}")
    elif plot is not None:
        note(f"no plot: {shown(str(plot))} is not written, there are too few questions to fit")
    if failure is not None:
        raise failure
    for reason in report.missing:
        note(f"cannot be set: {shown(reason)}")
    if report.missing:
        raise typer.Exit(1)
    if stored:
        note("in force from now on; the shipped one is back with: rag calibrate --drop")
    else:
        note("nothing is changed; to put it in force add --set")


# Steps ---------------------------------------------------------------------------------------------


def _service(settings: Settings) -> Service:
    from pyrag.service import Service, open_database

    return Service(settings, open_database(settings, note))


def _report(
    settings: Settings,
    source: Path,
    off_topic: Path | None,
    held_out: bool,
    put: bool,
    plot: Path | None,
) -> tuple[Service, Report]:
    from pyrag.calibration import check_library
    from pyrag.calibration_report import make_report
    from pyrag.eval_plot import check_plot, write_calibration
    from pyrag.evaluation import load_questions
    from pyrag.labelled import ask_dataset, ask_questions, read_strangers
    from pyrag.progress import progress_bar, question_bar

    check_library()
    if plot is not None:
        check_plot(plot)
    if source.is_dir():
        service = _service(settings)
        calibrations = _calibrations(service, needed=put)
        labelled = ask_dataset(
            source,
            service.settings,
            service.database,
            note_shown,
            off_topic,
            held_out,
            progress_bar,
            question_bar,
            calibrations,
        )
    else:
        questions = load_questions(source)
        strangers = read_strangers(off_topic, source, questions, note_shown)
        service = _service(settings)
        calibrations = _calibrations(service, needed=True)
        labelled = ask_questions(service, questions, strangers, held_out, question_bar)
    report = make_report(
        source.resolve().name,
        service.index,
        service.settings.retrieval,
        service.settings.min_confidence,
        labelled,
        calibrations,
        service.settings.min_similarity,
    )
    if plot is not None and report.fit is not None:
        write_calibration(plot, report)
    return service, report


def _calibrations(service: Service, needed: bool) -> list[dict[str, Any]]:
    """Those of the user's database; a BEIR folder needs none to be there, and gets those of an empty one."""
    try:
        return service.database.list_calibrations(service.index)
    except SchemaNotInitialized:
        if needed:
            raise
    with service.database.throwaway() as empty:
        return empty.list_calibrations(service.index)


def _store(service: Service, report: Report) -> None:
    assert report.fit is not None
    errors = report.at_half
    service.database.set_calibration(
        report.index,
        report.retrieval,
        report.fit.weights.as_list(),
        report.fitted_on,
        errors.wrong_refusals.total,
        errors.wrong_answers.total,
        report.fit.figures.auroc,
        errors.wrong_answers.value,
        errors.wrong_refusals.value,
    )


def _drop(settings: Settings, as_json: bool) -> None:
    if settings.retrieval == "vector":
        if as_json:
            print_json({"dropped": False})
        else:
            print("nothing to drop: retrieval by vectors alone has no calibration")
            print("to drop that of another retrieval: RAG_RETRIEVAL=lexical rag calibrate --drop")
        return
    service = _service(settings)
    retrieval = service.settings.retrieval
    dropped = service.database.drop_calibration(service.index, retrieval)
    about = f"{service.index.provider} {shown(service.index.model)}, {retrieval}"
    if as_json:
        print_json({"dropped": dropped})
    elif dropped:
        print(f"dropped: the calibration of {about}; the shipped one counts again, if there is one")
    else:
        print(f"there is no calibration of your own for {about}")


def _show(settings: Settings, as_json: bool) -> None:
    from pyrag.calibration_report import weights_of

    service = _service(settings)
    rows = service.database.list_calibrations(service.index)
    for row in rows:
        row["in_force"] = row["in_force"] and row["retrieval"] == settings.retrieval
    if as_json:
        print_json(rows)
        return
    for row in rows:
        mark = "in force  " if row["in_force"] else "          "
        print(
            f"{mark}{row['retrieval']:<8}  {row['origin']:<10}"
            f"  {shown(row['embedding_provider'])} {shown(row['embedding_model'])}"
        )
        print(f"          {_formula(weights_of(row))}")
        print(
            f"          AUROC {row['auroc']:.3f}, wrong answers {row['wrong_answers']:.1%},"
            f" wrong refusals {row['wrong_refusals']:.1%} at 0.5"
        )
        print(
            f"          {row['fitted_at'][:10]}, {row['answerable']} answerable and {row['unanswerable']}"
            f" unanswerable questions: {shown(row['fitted_on'])}\n"
        )
    if not any(row["in_force"] for row in rows):
        print(f"none is in force: {settings.retrieval} retrieval is judged by similarity")


# Printing ------------------------------------------------------------------------------------------


def _print_report(report: Report) -> None:
    labelled = report.labelled
    print(
        f"{shown(report.fitted_on)}; {report.index.provider} {shown(report.index.model)}, {report.retrieval}"
    )
    if labelled.without_words:
        print(f"left out: {len(labelled.without_words)} questions without words, judged by similarity")
    if labelled.repeated:
        print(f"left out: {len(labelled.repeated)} questions that were asked before, in the same words")
    for absent, keys in labelled.sources_not_indexed.items():
        print(f"not in the index: {shown(absent)}, expected by {shown(', '.join(keys))}")
    if labelled.not_found:
        print(
            f"{len(labelled.not_found)} answerable questions have none of their notes among the hits,"
            f" the first: {shown(labelled.not_found[0])}"
        )
    if report.fit is None:
        return
    found = report.fit.figures
    print("\non questions not fitted on, with the true shares that fit them (95 % intervals):")
    if len(found.auroc_by_kind) > 1:
        print("every kind of unanswerable questions counts the same, however many there are")
    print(f"AUROC             {_auroc(found)}")
    if report.now is not None:
        print(f"{f'  {report.origin} now':<18}{_auroc(report.now)}")
    print(f"\n{'threshold':<18}{'wrong answers':<26}{'wrong refusals':<26}wrong answers by kind")
    for errors in found.errors:
        _print_errors(f"{errors.threshold:.2f}{' *' if errors.threshold == report.threshold else ''}", errors)
    _print_errors(f"{found.best.threshold:.2f} fewest", found.best)
    if report.decided is not None:
        _print_errors(f"{report.decided.threshold:.2f} in force", report.decided)
    print("* RAG_MIN_CONFIDENCE; fewest: both shares together are least; in force: by today's settings")
    if report.floor is not None:
        about = (
            "a floor beside the confidence, which only the row in force counts in"
            if report.now is not None
            else "the threshold until there is a calibration, and a floor beside the confidence then"
        )
        print(f"RAG_MIN_SIMILARITY={report.floor:g} is set: {about}")
    print(f"\n{_formula(report.fit.weights)}")
    if report.fit.separate:
        print(
            "the classes separate completely, so these questions do not say how steep the weights are:"
            " more and harder ones do"
        )
    if not report.fit.own_cjk and report.fit.weights.cjk:
        print("the weight of cjk_share keeps its ratio to coverage: too few questions in one language")


def _print_errors(name: str, errors: Errors) -> None:
    kinds = ", ".join(f"{kind} {share.value:.1%}" for kind, share in errors.by_kind.items())
    print(f"{name:<18}{_share(errors.wrong_answers):<26}{_share(errors.wrong_refusals):<26}{kinds}")


def _auroc(found: Figures) -> str:
    low, high = found.interval
    kinds = ", ".join(f"{kind} {area:.3f}" for kind, area in found.auroc_by_kind.items())
    return f"{found.auroc:.3f} ({low:.3f} to {high:.3f})   {kinds}"


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.value:.1%} ({low:.1%} to {high:.1%})"


def _formula(weights: Weights) -> str:
    terms = [f"{weights.intercept:.2f}"]
    named = (
        (weights.similarity, "similarity"), (weights.coverage, "coverage"), (weights.cjk, "cjk_share")
    )  # fmt: skip
    for weight, name in named:
        if weight:
            terms.append(f"{'-' if weight < 0 else '+'} {abs(weight):.2f} {name}")
    return f"confidence = 1 / (1 + exp(-({' '.join(terms)})))"
