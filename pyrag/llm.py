"""Language models: what they all give, and the one that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pyrag.errors import LlmConfigMissing
from pyrag.models import Finish, Prompt

if TYPE_CHECKING:
    from pyrag.config import Settings


class Llm(Protocol):
    """A model that writes answers."""

    def reply(self, prompt: Prompt, *, stream: bool) -> Iterator[str | Finish | None]:
        """The answer as non-empty pieces of text in order, then one `Finish`.

        None comes about every half second of waiting, so that the caller can look after its own client.
        Closing the iterator ends the call. Raises `LlmTimeout`, `LlmAuthFailed`, `LlmRateLimited` or
        `LlmUpstreamError`, also after pieces: their `details["mid_stream"]` is then true.
        """
        ...


def build_llm(settings: Settings) -> Llm:
    """The model that the settings name. Raises `LlmConfigMissing` when a setting of it is missing."""
    if settings.llm_provider == "fake":
        from pyrag.fake_llm import FakeLlm

        return FakeLlm()
    base_url, key, model = settings.llm_base_url, settings.llm_api_key, settings.llm_model
    if not (base_url and key and model):
        values = {"LLM_BASE_URL": base_url, "LLM_API_KEY": key, "LLM_MODEL": model}
        raise LlmConfigMissing(
            f"LLM_PROVIDER={settings.llm_provider} needs "
            + ", ".join(name for name, value in values.items() if not value),
            hint="Set it in the environment or in .env, or use LLM_PROVIDER=fake.",
        )
    from pyrag.remote_llm import RemoteLlm

    return RemoteLlm(
        base_url=base_url,
        model=model,
        key=key,
        timeout_seconds=settings.llm_timeout_seconds,
        max_tokens=settings.llm_max_tokens,
    )
