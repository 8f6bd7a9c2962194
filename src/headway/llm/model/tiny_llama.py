"""A small language model made on the spot: a Llama of a few hundred thousand weights that knows the words it is given.

    words of a game --> a tokenizer with one token a word --> a folder, as transformers loads it
                        random weights from a seed

A word is letters and digits that stand together, or one other character; white space only separates them. What is not
among the words becomes `<unknown>`. The chat template is `<user>words<end><assistant>`, so a reply ends with `<end>`.

Such a folder can be named where a model is asked for. It knows nothing: let it imitate something first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headway.llm.model.loading_models import cache_folder, written_once
from headway.llm.model.types import ModelError

END, UNKNOWN = "<end>", "<unknown>"
SPECIAL = (END, UNKNOWN, "<system>", "<user>", "<assistant>", "<tool>")
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
FORMAT = 1
"""Part of the key under which models are kept: another one where the same definition gives other files."""


@dataclass(frozen=True, slots=True)
class WordModel:
    """Says what a made model is like: everything that its files depend on."""

    words: tuple[str, ...]
    hidden: int = 96
    """Width of its layers, a multiple of 2 * heads."""
    layers: int = 3
    heads: int = 4
    context: int = 8192
    """Tokens that it can read."""
    seed: int = 0
    """Of its weights."""

    def __post_init__(self) -> None:
        if not self.words:
            raise ModelError("a made model needs at least one word")
        for name in ("hidden", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise ModelError(f"a made model needs {name} >= 1, received {getattr(self, name)!r}")
        if self.hidden % (2 * self.heads):
            raise ModelError(f"hidden={self.hidden} must be a multiple of 2 * heads = {2 * self.heads}")

    @property
    def key(self) -> str:
        """Two definitions have the same key if they are the same."""
        return hashlib.sha256(json.dumps([FORMAT, asdict(self)]).encode()).hexdigest()[:16]


def make_word_model(
    words: Iterable[str],
    folder: Path,
    *,
    hidden: int = 96,
    layers: int = 3,
    heads: int = 4,
    context: int = 8192,
    seed: int = 0,
) -> Path:
    """Writes a model that knows these words, with its tokenizer, to a folder that is not there yet."""
    if folder.exists():
        raise ModelError(f"{folder} exists: choose another folder for a made model")
    made = WordModel(tuple(dict.fromkeys(words)), hidden, layers, heads, context, seed)
    return written_once(folder, partial(_write, made))


def kept_word_model(definition: WordModel) -> Path:
    """Returns the folder of a made model in the cache; it is made where it is not there yet."""
    folder = cache_folder() / "models" / f"made-{definition.key}"
    return written_once(folder, partial(_write, definition))


def word_tokenizer(words: Iterable[str]) -> Any:
    """Makes a tokenizer with one token a word, with a chat template."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    listed = [*SPECIAL, *(word for word in dict.fromkeys(words) if word not in SPECIAL)]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(listed)}, unk_token=UNKNOWN))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.Split(Regex(r"[^\w\s]"), "isolated"),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=END, unk_token=UNKNOWN)
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL[2:])})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _write(definition: WordModel, folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = word_tokenizer(definition.words)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=definition.hidden,
        intermediate_size=2 * definition.hidden,
        num_hidden_layers=definition.layers,
        num_attention_heads=definition.heads,
        num_key_value_heads=definition.heads,
        max_position_embeddings=definition.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(definition.seed)
        model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
