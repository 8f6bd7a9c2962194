"""Prompts of a GRPO run: its task, its chat template, and what happens to prompts that are too long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headway.llm.build_trained_models import device_of
from headway.llm.tasks.reward_functions import RewardFunction, RewardFunctions, load_rewards
from headway.llm.tasks.tasks import HELD_OUT, TRAIN, LongPrompt, Prompt, PromptTask, Task, load_task, with_system_prompt

if TYPE_CHECKING:
    from headway.llm.grpo_config import GRPOConfig
    from headway.llm.model.types import Tokenizer


def build_task(config: GRPOConfig) -> Task:
    rewards = partial(_rewards, config) if config.reward_names else None
    return load_task(config.task, seed=config.seed, rewards=rewards, **config.all_task_options)


def _rewards(config: GRPOConfig, task: PromptTask) -> RewardFunctions:
    def model(place: str) -> RewardFunction:
        from headway.llm.tasks.reward_models import ModelReward

        asked = config.reward_model_device
        device = device_of(config if asked == "auto" else config.model_copy(update={"device": asked}))
        return ModelReward(place, device, config.reward_model_rows)

    rule = task.by_rule if task.has_rule else None
    options = config.reward_options
    return load_rewards(config.reward_names, config.reward_weights, options=options, rule=rule, model=model)


def fitting_task(config: GRPOConfig, say: Callable[[str], None] | None = None) -> tuple[Task, int]:
    """The task without prompts that are too long, and how many of them to train on; or LongPrompt, where those are an
    error."""
    task, encode = build_task(config), Encoder(config)
    if not isinstance(task, PromptTask):
        return task, 0
    if config.on_long_prompt == "error":
        asked = config.eval_prompts if config.evaluate_every else 0
        for prompt in (*task.listed(TRAIN), *task.listed(HELD_OUT)[:asked]):
            encode(prompt)
        return task, 0
    fitting, left_out = task.without(encode.is_too_long)
    if say is not None and any(left_out.values()):
        counts = f"{left_out[TRAIN]} of {len(task)} to train on, {left_out[HELD_OUT]} of {len(task.held_out)} held out"
        say(f"prompts longer than max_prompt_tokens={config.max_prompt_tokens} are left out: {counts}")
    return fitting, left_out[TRAIN]


class Encoder:
    """Prompts as tokens, by the model's chat template."""

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self._tokenizer: Tokenizer | None = None

    def __call__(self, prompt: Prompt) -> tuple[int, ...]:
        from headway.llm.model.loading_models import ModelError, encode_chat, load_tokenizer

        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.model)
        messages = [dict(m) for m in with_system_prompt(prompt.messages, self._config.system_prompt)]
        try:
            tokens = encode_chat(
                self._tokenizer,
                messages,
                template=self._config.chat_template,
                options=self._config.chat_template_options,
                tools=prompt.tools,
            )
        except ModelError as error:
            raise ValueError(f"prompt {prompt.uid}: {error}") from None
        if len(tokens) > self._config.max_prompt_tokens:
            raise LongPrompt(
                f"prompt {prompt.uid} has {len(tokens)} tokens, more than max_prompt_tokens="
                f"{self._config.max_prompt_tokens} (on_long_prompt=drop leaves it out)"
            )
        return tokens

    def is_too_long(self, prompt: Prompt) -> bool:
        try:
            self(prompt)
        except LongPrompt:
            return True
        return False
