"""How a situation becomes tokens: the prompt as the user's message, and a reply that begins with `Action:`.

    <user> You are in the kitchen. ... What do you do next? <end> <assistant> Action:| take key
    ------------------------------- prompt ----------------------------------------- - action -

An action's tokens end with nothing. With the end of the reply among them, `take key` would be judged by whether a
model stops there too, and a small one that goes on talking would hold that against every short action; without it an
action that begins another one (`take key`, `take key from chest`) is only judged by the words it has, which is what a
mean over tokens compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from headway.core.types_opaque import SettingValue
from headway.llm.model.loading_models import encode_chat
from headway.llm.model.types import ModelError, Tokenizer
from headway.text_games.action_prior import Situation, SituationTokens

REPLY_BEGINS = "Action:"
KEPT_PROMPTS, KEPT_ACTIONS = 1024, 8192
"""Texts whose tokens are kept: games return to where they were, and the same actions come again and again."""


class ActionChat:
    """Makes tokens of situations for a model with this tokenizer; without a chat template, of the texts as lines."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str = "",
        chat_template_options: Mapping[str, SettingValue] | None = None,
        system_prompt: str = "",
        reply_begins: str = REPLY_BEGINS,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = chat_template
        self._options = dict(chat_template_options or {})
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._begins = reply_begins
        self._begin = self._encoded(reply_begins)
        self._prompt = lru_cache(KEPT_PROMPTS)(self._encoded_prompt)
        self._action = lru_cache(KEPT_ACTIONS)(self._encoded_action)

    def __call__(self, situation: Situation) -> SituationTokens:
        return self._prompt(situation.prompt), tuple(map(self._action, situation.actions))

    def _encoded_prompt(self, text: str) -> tuple[int, ...]:
        messages = [*self._system, {"role": "user", "content": text.rstrip("\n")}]
        opening = encode_chat(self._tokenizer, messages, template=self._template, options=self._options)
        return (*opening, *self._begin)

    def _encoded_action(self, text: str) -> tuple[int, ...]:
        """Encodes it where it stands: some tokenizers write the first word of a text in another way."""
        gap = " " if self._begins else ""
        whole = self._encoded(f"{self._begins}{gap}{text}")
        is_parted = whole[: len(self._begin)] == self._begin
        tokens = whole[len(self._begin) :] if is_parted else self._encoded(gap + text)
        if not text.strip() or not tokens:
            raise ModelError(f"the action {text!r} has no tokens")
        return tokens

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()
