"""fake-lexical-v1: golden vectors, a plain second reading of its definition, and the borders of CJK."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pyrag.config import Settings, load_configuration
from pyrag.embeddings import DIMENSIONS, FakeLexicalEmbedder, build_embedder
from pyrag.errors import InvalidConfiguration
from pyrag.lexical import is_cjk, lexical_features
from pyrag.models import EmbeddingInput, Vector

GOLDEN = json.loads((Path(__file__).parent / "data" / "fake_lexical_v1.json").read_text(encoding="utf-8"))
FULL = EmbeddingInput("内容 text", ("Top", "标题"), "policies/A.md", ("tag", "标签"), ("Other Page",))


@pytest.fixture(scope="module")
def embedder() -> FakeLexicalEmbedder:
    return FakeLexicalEmbedder()


def item_of(fields: dict[str, Any]) -> EmbeddingInput:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    return EmbeddingInput(**values)


def nonzero(vector: Vector) -> dict[int, float]:
    return {bucket: value for bucket, value in enumerate(vector) if value}


def cosine(one: Vector, other: Vector) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


# Vectors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN["vectors"], ids=lambda case: case["name"])
def test_golden_vectors_come_out(embedder: FakeLexicalEmbedder, case: dict[str, Any]) -> None:
    vector = embedder.embed_documents([item_of(case["fields"])])[0]
    expected = {int(bucket): value for bucket, value in case["nonzero"].items()}
    assert nonzero(vector) == pytest.approx(expected, abs=1e-9)
    if set(case["fields"]) == {"content"}:
        assert embedder.embed_query(case["fields"]["content"]) == vector


def test_the_golden_file_has_an_empty_vector_and_one_of_all_fields() -> None:
    assert any(not case["nonzero"] for case in GOLDEN["vectors"])
    assert any(len(case["fields"]) == 5 for case in GOLDEN["vectors"])


@pytest.mark.parametrize("question", ["？？？", "", " \n", "a", "I a A", "— … !", "éè", "Привет", "👍"])
def test_a_question_without_words_is_the_zero_vector(embedder: FakeLexicalEmbedder, question: str) -> None:
    assert embedder.embed_query(question) == [0.0] * DIMENSIONS


def second_reading(item: EmbeddingInput) -> list[float]:
    """The definition, word by word and without any speed."""
    weights = [0.0] * 1024
    for text, weight in (
        (item.content, 1.0),
        (" ".join(item.heading_path), 2.0),
        (item.relative_path, 1.5),
        (" ".join(item.tags), 1.25),
        (" ".join(item.wikilinks), 1.25),
    ):
        text = unicodedata.normalize("NFKC", text).lower()
        text = re.sub(r"\s+", " ", re.sub(r"[/\\._-]", " ", text))
        features = [word for word in re.findall("[a-z0-9]+", text) if word not in ("a", "i")]
        cjk = [_in_cjk(character) for character in text]
        features += [character for character, inside in zip(text, cjk, strict=True) if inside]
        features += [text[n : n + 2] for n in range(len(text) - 1) if cjk[n] and cjk[n + 1]]
        for feature, count in Counter(features).items():
            digest = hashlib.sha256(f"fake-lexical-v1:{feature}".encode()).digest()
            weights[int.from_bytes(digest[:8], "big", signed=False) % 1024] += min(count, 4) * weight
    norm = math.sqrt(math.fsum(value * value for value in weights))
    return [value / norm for value in weights] if norm else weights


def _in_cjk(character: str) -> bool:
    code = ord(character)
    ranges = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3134F), (0x3040, 0x30FF))
    return any(low <= code <= high for low, high in (*ranges, (0xAC00, 0xD7AF)))


texts = st.text(
    st.one_of(
        st.sampled_from("ai aI1Z工单升級カな글/\\._-— \n\t\u3000ＡＰＩ①ﬁ㍿ｶﾞ\u0301"),
        st.characters(codec="utf-8"),
    ),
    max_size=30,
)
items = st.builds(
    EmbeddingInput,
    content=texts,
    heading_path=st.lists(texts, max_size=2).map(tuple),
    relative_path=texts,
    tags=st.lists(texts, max_size=2).map(tuple),
    wikilinks=st.lists(texts, max_size=2).map(tuple),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(items, max_size=3))
def test_vectors_follow_the_definition(found: list[EmbeddingInput]) -> None:
    vectors = FakeLexicalEmbedder().embed_documents(found)
    assert len(vectors) == len(found)
    for vector, item in zip(vectors, found, strict=True):
        assert vector == pytest.approx(second_reading(item), abs=1e-12)


@pytest.mark.parametrize("item", [FULL, EmbeddingInput("one"), EmbeddingInput("字" * 5000)])
def test_a_vector_has_length_one_and_1024_dimensions(
    embedder: FakeLexicalEmbedder, item: EmbeddingInput
) -> None:
    vector = embedder.embed_documents([item])[0]
    assert len(vector) == embedder.dim == 1024
    assert math.fsum(value * value for value in vector) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("times", "counted"), [(1, 1), (2, 2), (4, 4), (5, 4), (40, 4)])
def test_a_repeated_word_counts_four_times_at_most(
    embedder: FakeLexicalEmbedder, times: int, counted: int
) -> None:
    vector = embedder.embed_query("valve " + "alert " * times)
    [alert] = nonzero(embedder.embed_query("alert"))
    [valve] = nonzero(embedder.embed_query("valve"))
    assert vector[alert] == pytest.approx(counted * vector[valve])


def test_vectors_do_not_depend_on_what_was_embedded_before(embedder: FakeLexicalEmbedder) -> None:
    others = [EmbeddingInput(f"word{n}", relative_path=FULL.relative_path) for n in range(20)]
    vectors = embedder.embed_documents([*others, FULL, *others, FULL])
    assert vectors[20] == vectors[41] == FakeLexicalEmbedder().embed_documents([FULL])[0]


def test_more_shared_words_score_higher(embedder: FakeLexicalEmbedder) -> None:
    question = embedder.embed_query("客户 P1 工单如何升级")
    close, far, none = (
        cosine(question, embedder.embed_query(text))
        for text in ("P1 工单升级给值班经理", "客户合同", "boiling point of helium")
    )
    assert close > far > none == 0


def test_no_texts_give_no_vectors(embedder: FakeLexicalEmbedder) -> None:
    assert embedder.embed_documents([]) == []


# Hash of the input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"content": "内容 text."},
        {"heading_path": ("Top",)},
        {"heading_path": ("标题", "Top")},
        {"relative_path": "policies/B.md"},
        {"tags": ("tag",)},
        {"wikilinks": ()},
        {"tags": FULL.wikilinks, "wikilinks": FULL.tags},
    ],
    ids=str,
)
def test_the_input_hash_changes_with_each_field(
    embedder: FakeLexicalEmbedder, change: dict[str, Any]
) -> None:
    assert embedder.input_hash(replace(FULL, **change)) != embedder.input_hash(FULL)


def test_the_input_hash_is_lower_case_sha256_in_hex(embedder: FakeLexicalEmbedder) -> None:
    assert re.fullmatch("[0-9a-f]{64}", embedder.input_hash(FULL))
    assert embedder.input_hash(FULL) == FakeLexicalEmbedder().input_hash(replace(FULL))


def test_hash_and_vector_are_the_same_in_every_process(embedder: FakeLexicalEmbedder) -> None:
    program = (
        "import json, sys; from pyrag.embeddings import *; from pyrag.models import *; "
        f"e = FakeLexicalEmbedder(); item = {FULL!r}; "
        "sys.stdout.write(json.dumps([e.input_hash(item), e.embed_documents([item])[0]]))"
    )
    expected = [embedder.input_hash(FULL), embedder.embed_documents([FULL])[0]]
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert json.loads(run.stdout) == expected


# Words and CJK -------------------------------------------------------------------------------------

BORDERS = [
    0x3400,
    0x4DBF,
    0x4E00,
    0x9FFF,
    0x20000,
    0x2A6DF,
    0x2FFFF,
    0x30000,
    0x3134F,
    0x3040,
    0x30FE,
    0xAC00,
    0xD7AF,
]
OUTSIDE = [0x33FF, 0x4DC0, 0xA000, 0xF8FF, 0xFB00, 0x1FFFF, 0x31350, 0x303F, 0x3105, 0xABFF, 0xD7B0]


@pytest.mark.parametrize("code", BORDERS, ids=hex)
def test_a_character_at_a_border_of_cjk_is_one_feature(code: int) -> None:
    assert is_cjk(chr(code))
    assert list(lexical_features(chr(code))) == [chr(code)]


@pytest.mark.parametrize("code", [0xF900, 0xFAFF, 0x2F800, 0x30FF], ids=hex)
def test_a_compatibility_character_is_cjk_and_counts_as_what_it_stands_for(code: int) -> None:
    assert is_cjk(chr(code))
    plain = unicodedata.normalize("NFKC", chr(code))
    assert list(lexical_features(chr(code))) == list(lexical_features(plain))
    assert set(plain) <= set(lexical_features(plain))


def test_latin_text_is_not_cjk() -> None:
    assert not is_cjk("ABCXYZ abcxyz 0189 [-] éß")


@pytest.mark.parametrize("code", OUTSIDE, ids=hex)
def test_a_character_beyond_the_borders_is_not_cjk(code: int) -> None:
    assert not is_cjk(chr(code))
    assert not any(map(is_cjk, lexical_features(chr(code))))
    assert "字" + chr(code) not in lexical_features("字" + chr(code))


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("工单升级", ["工", "单", "升", "级", "工单", "单升", "升级"]),
        ("工单，升级", ["工", "单", "升", "级", "工单", "升级"]),
        ("工 单", ["工", "单"]),
        ("工-单_工", ["工", "单", "工"]),
        ("工\u200b单", ["工", "单"]),
        ("工a单", ["工", "单"]),
        ("工P1单", ["p1", "工", "单"]),
        ("字カ한", ["字", "カ", "한", "字カ", "カ한"]),
        ("ｶﾞ", ["ガ"]),
        ("하\u11ab글", ["한", "글", "한글"]),
        ("㍿", ["株", "式", "会", "社", "株式", "式会", "会社"]),
        ("The API-2 a I b", ["the", "api", "2", "b"]),
        ("ＡＰＩ　①", ["api", "1"]),
        ("snake_case/path.to\\x-y", ["snake", "case", "path", "to", "x", "y"]),
        ("naïve İx", ["na", "ve", "x"]),
    ],
)
def test_features_are_words_characters_and_pairs_of_neighbours(text: str, features: list[str]) -> None:
    assert sorted(lexical_features(text)) == sorted(features)


# The provider --------------------------------------------------------------------------------------


def test_the_fake_provider_is_built_with_its_names(settings: Settings) -> None:
    built = build_embedder(settings)
    assert (built.provider, built.model, built.dim) == ("fake", "fake-lexical-v1", 1024)
    assert built.embed_query("工单") == FakeLexicalEmbedder().embed_query("工单")


@pytest.mark.parametrize("provider", ["local-qwen3", "local-e5", "openai-compatible"])
def test_a_provider_that_is_not_built_yet_is_never_a_silent_fake(provider: str) -> None:
    loaded = load_configuration(environ={"EMBEDDING_PROVIDER": provider}, folder=Path("/"))
    with pytest.raises(InvalidConfiguration, match=f"EMBEDDING_PROVIDER={provider}"):
        build_embedder(loaded.settings)
