"""A language model that a recipe has trained, as something to ask: its weights, its template, an engine of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from headway.coordinator.checkpoint_best_weights import Kept
from headway.core.types_opaque import JsonObject
from headway.llm.build_trained_models import TrainsAModel, device_of, frozen_model
from headway.llm.engine.protocol_engine import Sampling
from headway.llm.model.conversation import Conversation
from headway.llm.policy_language_policy import LanguagePolicy, Spoken
from headway.runs.recipes_facts import Facts

ROWS, LEAST_CONTEXT = 4, 1024
"""Replies that are drawn side by side, and tokens that a prompt and its reply may have at least."""


class TrainsAChat(TrainsAModel, Protocol):
    """The settings of a recipe, as far as they concern the model and what is said to it."""

    @property
    def system_prompt(self) -> str: ...

    @property
    def chat_template(self) -> str: ...

    @property
    def chat_template_options(self) -> JsonObject: ...


def language_policy(
    config: TrainsAChat,
    kept: Kept,
    recipe: str,
    title: str,
    sampling: Sampling,
    *,
    context: int,
    conversation: Conversation | None = None,
) -> LanguagePolicy:
    """The model with these weights. With a `conversation`, its tokens are those that its episodes begin with."""
    from headway.llm.engine.transformers_engine import TransformersEngine, build_decoder
    from headway.llm.model.loading_models import context_length, encode_chat, load_config, load_tokenizer, stop_tokens
    from headway.llm.model.loading_saving import save_pretrained, with_weights

    torch.set_num_threads(config.torch_threads)
    model = with_weights(frozen_model(config, device_of(config)), kept.weights)
    tokenizer = load_tokenizer(config.model)
    room = min(max(context, LEAST_CONTEXT), context_length(load_config(config.model)))
    ends = tuple(getattr(config, "stop_token_ids", ()))
    if conversation is not None and conversation.end_token is not None:
        ends = (*ends, conversation.end_token)

    def encode(messages: list[JsonObject]) -> tuple[int, ...]:
        if conversation is not None:
            return (*conversation.opening(messages), *conversation.prefix)
        options = config.chat_template_options
        return encode_chat(tokenizer, messages, template=config.chat_template, options=options)

    return LanguagePolicy(
        Facts(recipe, title, kept.version, kept.score),
        model,
        tokenizer,
        TransformersEngine(
            build_decoder(model, rows=ROWS, context=room), tokenizer, stop_tokens(config.model, tokenizer, ends)
        ),
        Spoken(encode, sampling, conversation.system_prompt if conversation is not None else config.system_prompt),
        lambda to: save_pretrained(model, tokenizer, Path(to)),
    )
