"""Embedders: text in, L2-normalised vectors of 1024 dimensions out."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from pyrag.errors import InvalidConfiguration
from pyrag.lexical import lexical_features
from pyrag.models import EmbeddingInput, Vector

if TYPE_CHECKING:
    from pyrag.config import Settings

DIMENSIONS = 1024


class Embedder(Protocol):
    """A provider of embeddings. Vectors are L2-normalised; all zeros means "nothing to search for"."""

    provider: str
    model: str
    dim: int

    def input_hash(self, item: EmbeddingInput) -> str:
        """Hex SHA-256 of the exact text that `embed_documents` would embed for this item."""
        ...

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        """One vector an item, in the order of the items."""
        ...

    def embed_query(self, question: str) -> Vector:
        """The vector of a question; all zeros when it holds nothing to embed."""
        ...


def build_embedder(settings: Settings) -> Embedder:
    """The embedder that the settings name. Raises `InvalidConfiguration` for one not built yet."""
    if settings.embedding_provider == "fake":
        return FakeLexicalEmbedder()
    raise InvalidConfiguration(
        f"EMBEDDING_PROVIDER={settings.embedding_provider} is not built in this version of pyrag",
        hint="Set EMBEDDING_PROVIDER=fake; the other providers come with a later version.",
    )


_CAP = 4  # one token adds at most this many times its field's weight
_CACHE_LIMIT = 400_000


class FakeLexicalEmbedder:
    """`fake-lexical-v1`: feature hashing of words and CJK n-grams.

    Deterministic and without network: each feature falls into bucket
    `first 8 bytes, big endian, of SHA-256("fake-lexical-v1:" + feature) mod 1024`.
    """

    provider = "fake"
    model = "fake-lexical-v1"
    dim = DIMENSIONS

    def __init__(self) -> None:
        self._buckets = _Buckets()
        # headings, path, tags and links recur from chunk to chunk
        self._field = lru_cache(maxsize=8192)(self._count)

    def input_hash(self, item: EmbeddingInput) -> str:
        """Hex SHA-256 of the fields as a JSON array: for this model the fields are the text."""
        fields = [item.content, item.heading_path, item.relative_path, item.tags, item.wikilinks]
        return hashlib.sha256(json.dumps(fields, ensure_ascii=False).encode()).hexdigest()

    def embed_documents(self, items: Sequence[EmbeddingInput]) -> list[Vector]:
        """One vector an item, in the order of the items."""
        return [self._embed(item) for item in items]

    def embed_query(self, question: str) -> Vector:
        """The vector of a question, which is content only."""
        return self._embed(EmbeddingInput(content=question))

    def _embed(self, item: EmbeddingInput) -> Vector:
        weights: dict[int, float] = dict(self._count(item.content))
        for text, weight in (
            (" ".join(item.heading_path), 2.0),
            (item.relative_path, 1.5),
            (" ".join(item.tags), 1.25),
            (" ".join(item.wikilinks), 1.25),
        ):
            for bucket, count in self._field(text).items():
                weights[bucket] = weights.get(bucket, 0.0) + count * weight
        norm = math.hypot(*weights.values())
        vector = [0.0] * DIMENSIONS
        for bucket, value in weights.items():
            vector[bucket] = value / norm
        return vector

    def _count(self, text: str) -> dict[int, int]:
        """How often the tokens of one field fall into each bucket; one token counts at most `_CAP` times."""
        bucket_of = self._buckets
        tokens = Counter(lexical_features(text))
        counts = Counter(map(bucket_of.__getitem__, tokens))
        for token, count in tokens.items():
            if count > 1:
                counts[bucket_of[token]] += min(count, _CAP) - 1
        return counts


class _Buckets(dict[str, int]):
    """The bucket of each feature, computed once and kept up to a limit."""

    def __missing__(self, feature: str) -> int:
        if len(self) >= _CACHE_LIMIT:
            self.clear()
        digest = hashlib.sha256(f"fake-lexical-v1:{feature}".encode()).digest()
        bucket = self[feature] = int.from_bytes(digest[:8], "big") % DIMENSIONS
        return bucket
