"""A trained language model that replies: a prompt in, text out, with the chat template and the limits of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from headway.core.types_opaque import JsonObject
from headway.llm.engine.protocol_engine import Engine, Request, Sampling
from headway.llm.model.types import CausalModel, Tokenizer
from headway.runs.recipes_facts import Facts

Prompt = str | Sequence[Mapping[str, object]]
"""A question, or the messages of a conversation: {"role": "user", "content": ...}."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """How prompts become tokens, and how replies are drawn unless somebody says otherwise."""

    encode: Callable[[list[JsonObject]], tuple[int, ...]]
    sampling: Sampling
    system_prompt: str = ""


class LanguagePolicy:
    """A model with its weights and an engine that generates with them. Close it, or use it in a `with` block.

    `model` is the torch module, as transformers made it, and `tokenizer` its tokenizer.
    """

    def __init__(
        self,
        facts: Facts,
        model: CausalModel,
        tokenizer: Tokenizer,
        engine: Engine,
        spoken: Spoken,
        export: Callable[[str], None],
    ) -> None:
        self.facts = facts
        self.model, self.tokenizer = model, tokenizer
        self.sampling = spoken.sampling
        self._engine, self._spoken, self._export = engine, spoken, export
        self._num_asked = 0

    def __repr__(self) -> str:
        return f"<language model of {self.facts}>"

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int = 0,
    ) -> str:
        """The reply to a question, or to a conversation. What is not said is as it was in the run's evaluations."""
        (reply,) = self.generate_several(
            prompt, 1, max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop, seed=seed
        )
        return reply

    def generate_several(
        self,
        prompt: Prompt,
        count: int,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int = 0,
    ) -> list[str]:
        """`count` replies to one prompt, each with its own lot."""
        usual = self.sampling
        sampling = replace(
            usual,
            max_tokens=usual.max_tokens if max_tokens is None else max_tokens,
            temperature=usual.temperature if temperature is None else temperature,
            top_p=usual.top_p if top_p is None else top_p,
            stop=usual.stop if stop is None else tuple(stop),
        )
        self._num_asked += 1
        request = Request(f"prompt-{self._num_asked}", self.encode(prompt), count, seed, sampling)
        return [sample.text for sample in self._engine.generate(request)]

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens of a prompt, up to where the model speaks."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
        if not messages:
            raise ValueError("a prompt needs at least one message")
        if self._spoken.system_prompt and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self._spoken.system_prompt}, *messages]
        return self._spoken.encode(messages)

    def export(self, to: str) -> None:
        """Writes the model as a folder that transformers and vLLM load."""
        self._export(to)

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> LanguagePolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
