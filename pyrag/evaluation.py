"""Runs questions with known answers and says which came out right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from pyrag.errors import InvalidRequest
from pyrag.lexical import same_text
from pyrag.schemas import AskResponse
from pyrag.service import Service


class Question(BaseModel):
    """An entry of questions.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    question: str
    expected_mode: Literal["rag", "no_answer"]
    expected_sources: list[str]

    @model_validator(mode="after")
    def _sources_fit_mode(self) -> Question:
        if (self.expected_mode == "rag") != bool(self.expected_sources):
            raise ValueError("expected_sources must be given for rag and be [] for no_answer")
        return self


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question with what came out; `right` means mode and first citation are as expected."""

    question: Question
    response: AskResponse
    right: bool

    @property
    def first_source(self) -> str | None:
        """The source of the first citation."""
        return self.response.citations[0].source if self.response.citations else None


def load_questions(path: Path) -> list[Question]:
    """The questions of a YAML file.

    Raises `InvalidRequest` naming the file, the entry and the field, and both entries where a question is
    said to have an answer and to have none.
    """
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        questions = TypeAdapter(list[Question]).validate_python(entries)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        raise InvalidRequest(
            f"{path}, entry {where or 'list'}: {wrong['msg'].removeprefix('Value error, ')}",
            hint="Each entry has id, question, expected_mode (rag or no_answer) and expected_sources.",
        ) from None
    if not questions:
        raise InvalidRequest(f"{path} holds no questions")
    seen: dict[str, Question] = {}
    for question in questions:
        first = seen.setdefault(same_text(question.question), question)
        if first.expected_mode != question.expected_mode:
            raise InvalidRequest(
                f"{path}: entries {first.id} ({first.expected_mode}) and {question.id}"
                f" ({question.expected_mode}) ask the same question"
            )
    return questions


def evaluate(
    service: Service, questions: list[Question], each: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Asks every question in turn; `each` is told of every outcome as it comes."""
    outcomes = []
    for question in questions:
        response = service.ask(question.question)
        right = response.mode == question.expected_mode and (
            question.expected_mode == "no_answer"
            or bool(response.citations and response.citations[0].source in question.expected_sources)
        )
        outcome = Outcome(question, response, right)
        outcomes.append(outcome)
        each(outcome)
    return outcomes
