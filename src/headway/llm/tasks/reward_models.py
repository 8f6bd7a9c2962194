"""A reward model: a transformer with a head of one number, which says how good a conversation is.

    prompt + reply --the reward model's own chat template--> tokens --> one number

A group is one batch, in passes of `rows` replies: its numbers depend on itself alone, never on who else was waiting.
One group is scored at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from headway.llm.model.loading_models import context_length, load_config, load_tokenizer, loading
from headway.llm.model.types import ModelError
from headway.llm.tasks.reward_functions import RewardQuestion, Rewards
from headway.llm.tasks.rewards import RewardError, read_reward
from headway.llm.tasks.tasks import Prompt

ROWS = 32


@dataclass(frozen=True)
class ModelReward:
    """Scores groups with a model that is loaded when it is first asked, where it is asked."""

    place: str
    """A folder, or an id on the model hub."""
    device: str = "cpu"
    rows: int = ROWS
    name: str = field(default="model", init=False)
    is_batched: bool = field(default=True, init=False)
    is_async: bool = field(default=False, init=False)
    stays_here: bool = field(default=True, init=False)
    max_calls: int | None = field(default=1, init=False)
    _loaded: list[_LoadedModel] = field(default_factory=list, init=False, repr=False, compare=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        config = load_config(self.place)
        if config.num_labels != 1:
            raise ModelError(
                f"reward model {self.place!r} has {config.num_labels} labels; a reward model has one number as its head"
            )

    def __str__(self) -> str:
        return f"reward model {self.place}"

    def __reduce__(self) -> tuple[type[ModelReward], tuple[str, str, int]]:
        return ModelReward, (self.place, self.device, self.rows)

    def check(self, prompt: Prompt) -> None:
        pass

    def ask(self, question: RewardQuestion) -> object:
        with self._turn:
            if not self._loaded:
                self._loaded.append(_LoadedModel(self.place, self.device))
            return self._loaded[0].scores(question, self.rows)

    def read(self, value: object, question: RewardQuestion) -> Rewards:
        assert isinstance(value, list)
        return [read_reward(one, str(self), question.prompt.uid) for one in value]


class _LoadedModel:
    """Holds the weights and the tokenizer of a reward model."""

    def __init__(self, place: str, device: str) -> None:
        self._place = place
        self._device = device
        tokenizer: Any = load_tokenizer(place)
        self._tokenizer = tokenizer
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        with loading(f"reward model {place!r}") as readable:
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                readable(place), dtype=dtype, output_loading_info=True
            )
        self._model, found = loaded
        if found["missing_keys"]:
            missing = sorted(found["missing_keys"])[0]
            raise ModelError(f"reward model {place!r} could not be loaded: its weights lack {missing}")
        self._model = self._model.to(device).eval()
        self._room = context_length(self._model.config)
        choices = (self._model.config.get_text_config().pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
        self._padding = next((token for token in choices if token is not None), 0)
        self._model.config.pad_token_id = self._padding  # the head reads the last token before the padding

    def scores(self, question: RewardQuestion, rows: int) -> list[float]:
        tokens = [self._encoded(question.prompt, reply) for reply in question.replies]
        found: list[float] = []
        for first in range(0, len(tokens), rows):
            found += self._pass(tokens[first : first + rows])
        return found

    @torch.inference_mode()
    def _pass(self, tokens: list[list[int]]) -> list[float]:
        longest = max(map(len, tokens))
        ids = torch.full((len(tokens), longest), self._padding)  # [B, T]
        mask = torch.zeros_like(ids)
        for row, one in enumerate(tokens):
            ids[row, : len(one)] = torch.tensor(one)
            mask[row, : len(one)] = 1
        logits = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device)).logits  # [B, 1]
        return [float(one) for one in logits[:, 0].float().cpu()]

    def _encoded(self, prompt: Prompt, reply: str) -> list[int]:
        tokenizer = self._tokenizer
        if getattr(tokenizer, "chat_template", None):
            said = [*(dict(message) for message in prompt.messages), {"role": "assistant", "content": reply}]
            tokens: list[int] = tokenizer.apply_chat_template(said, tokenize=True, return_dict=True)["input_ids"]
        else:
            tokens = tokenizer(prompt.text + reply)["input_ids"]
        if not tokens or len(tokens) > self._room:
            raise RewardError(
                f"reward model {self._place} reads 1 to {self._room} tokens; sample {prompt.uid} has {len(tokens)}"
            )
        return tokens
