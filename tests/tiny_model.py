"""Tiny models for a server of language models, made on the spot: `python tiny_model.py FOLDER`.

In FOLDER, `TOLD` says `REPLY` whatever it is asked, and ends. `RANDOM` has random weights of a fixed seed: it
says letters without sense, which depend on the whole prompt, and never ends. `BROKEN` is `TOLD` with settings
that make generation fail when it is streamed.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

TOLD, RANDOM, BROKEN = "tiny-told", "tiny-random", "tiny-broken"

# Pieces of a reply as a server generates them: all different, and characters are cut in the middle.
PIECES = (
    b"Replication", b" lag", b" over 60", b" seconds is", b" critical", b" [", b"1", b"]", b".\n\n",
    b"\xe5\xa4", b"\x8d\xe5\x88\xb6", b"\xe5\xbb\xb6\xe8\xbf", b"\x9f [99]", b"\xe3\x80\x82",
    b" \xf0\x9f", b"\x98\x80",
)  # fmt: skip
REPLY = b"".join(PIECES).decode()

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_BEGIN, _END, _ASSISTANT = "<|begin|>", "<|end|>", "<|assistant|>"
_ROLES = ["<|system|>", "<|user|>", _ASSISTANT]
_TEMPLATE = (
    "{{ '<|begin|>' }}{% for each in messages %}{{ '<|' + each.role + '|>' + each.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _spelled(data: bytes) -> str:
    """Bytes as byte-level tokenizers write them in a vocabulary: one visible character each."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return "".join(chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in data)


def _vocabulary() -> dict[str, int]:
    """Single bytes, the pieces of the reply, and the marks of the chat template."""
    words = [_BEGIN, _END, *_ROLES, *(_spelled(bytes([byte])) for byte in range(256)), *map(_spelled, PIECES)]
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def _tokenizer() -> Any:
    # typed Any, so that mypy does not read through these packages where they are installed
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=_vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BEGIN,
        eos_token=_END,
        additional_special_tokens=_ROLES,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_models(folder: Path) -> None:
    """Writes the models with their tokenizer and chat template."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(20)
    vocabulary = _vocabulary()
    begin, end = vocabulary[_BEGIN], vocabulary[_END]
    tokenizer = _tokenizer()
    for name, width in ((TOLD, 320), (RANDOM, 64)):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=len(vocabulary),
                hidden_size=width,
                intermediate_size=width,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=65_536,
                initializer_range=0.5,
                bos_token_id=begin,
                eos_token_id=end if name == TOLD else None,
                tie_word_embeddings=False,
            )
        )
        with torch.no_grad():
            if name == TOLD:
                _tell(model, vocabulary)
            else:  # only letters: no citation, no end
                letters = [vocabulary[_spelled(bytes([letter]))] for letter in _LETTERS]
                others = [number for number in range(len(vocabulary)) if number not in letters]
                model.lm_head.weight[others] = 0
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    shutil.copytree(folder / TOLD, folder / BROKEN)
    settings = folder / BROKEN / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "num_beams": 2}))


def _tell(model: Any, vocabulary: dict[str, int]) -> None:
    """Each token of the reply has the next one as its successor, whatever stands before it."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    embedding.zero_().fill_diagonal_(1)
    head.zero_()
    told = [_ASSISTANT, *map(_spelled, PIECES), _END]
    for word, successor in pairwise(told):
        head[vocabulary[successor], vocabulary[word]] = 1


if __name__ == "__main__":
    make_models(Path(sys.argv[1]))
