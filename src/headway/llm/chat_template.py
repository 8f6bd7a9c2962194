"""Conversations as tokens, by the chat template of a model."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.llm.model_types import ModelError, Tokenizer
from headway.llm.tasks import LongPrompt, Message, Prompt, with_system_prompt

SPOKEN = ("tool_calls", "function_call", "reasoning_content", "thinking", "refusal")
"""What a message may say besides its content."""
RAW = "none"
"""In place of a chat template: the texts as they are."""


def find_template(tokenizer: Tokenizer, template: str = "", options: Mapping[str, Any] | None = None) -> str | None:
    """Finds the text of a chat template: the tokenizer's own, that of a file, or None, where there is none or RAW is
    asked for. Options that it does not read are refused."""
    text: str | None = None
    if template and template != RAW:
        text = _template_of_a_file(template)
    elif not template and getattr(tokenizer, "chat_template", None):
        text = tokenizer.get_chat_template()
    for name in options or {}:
        if text is None:
            raise ModelError(f"chat_template_options: there is no chat template that could read {name!r}")
        if not re.search(rf"\b{re.escape(name)}\b", text):
            raise ModelError(f"chat_template_options: the chat template does not read {name!r}")
    return text


@functools.lru_cache(maxsize=1)
def _template_of_a_file(name: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"chat_template {name!r} could not be read: {error}") from None


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: str = "",
    options: Mapping[str, Any] | None = None,
    tools: Sequence[Message] = (),
) -> tuple[int, ...]:
    """Makes tokens of a conversation, up to where the model speaks; without a chat template, of its texts line by line.

    `template` and `options` as for `find_template`. `tools` and what messages say besides their content are refused
    where the template does not read them: they would be dropped without a word.
    """
    text = find_template(tokenizer, template, options)
    for name in ("tools",) * bool(tools) + tuple(key for m in messages for key in SPOKEN if m.get(key)):
        if text is None:
            raise ModelError(f"there is no chat template that could say {name!r} to the model")
        if not re.search(rf"\b{name}\b", text):
            raise ModelError(f"the chat template does not read {name!r}, so the model would not be told")
    if text is None:
        said = "\n".join(message["content"] for message in messages)
        return tuple(tokenizer.encode(said if template == RAW else said + "\n"))
    encoded = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        chat_template=text,
        tools=[dict(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(options or {}),
    )
    return tuple(encoded["input_ids"])


class ChatEncoder:
    """Makes tokens of prompts. It may travel to another process: the tokenizer is loaded where it is first needed."""

    def __init__(
        self, model: str, *, max_tokens: int, system_prompt: str, template: str, options: Mapping[str, Any]
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._system_prompt = system_prompt
        self._template = template
        self._options = options
        self._tokenizer: Tokenizer | None = None

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        """Returns the tokens of a prompt; raises LongPrompt where there are more than there is room for."""
        if self._tokenizer is None:
            from headway.llm.models import load_tokenizer

            self._tokenizer = load_tokenizer(self._model)
        messages = with_system_prompt(prompt.messages, self._system_prompt)
        try:
            tokens = encode_chat(
                self._tokenizer, messages, template=self._template, options=self._options, tools=prompt.tools
            )
        except ModelError as error:
            raise ValueError(f"prompt {prompt.uid}: {error}") from None
        if len(tokens) > self._max_tokens:
            raise LongPrompt(
                f"prompt {prompt.uid} has {len(tokens)} tokens, more than max_prompt_tokens="
                f"{self._max_tokens} (on_long_prompt=drop leaves it out)"
            )
        return tokens

    def is_too_long(self, prompt: Prompt) -> bool:
        try:
            self(prompt)
        except LongPrompt:
            return True
        return False
