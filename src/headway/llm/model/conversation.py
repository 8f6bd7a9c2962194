"""What is said to a model over many turns, as tokens: each message once, when it is new.

    first("Guess")             <user> Guess <end> <assistant>
      the reply, as drawn                                     Is it 4 ? <end>
    following("Lower")                                                        <user> Lower <end> <assistant>
      the reply, as drawn                                                                                   2 <end>

The chat template writes whole conversations; here it writes a short one that ends with the new message, and what stands
behind the reply in it is what is said next. So nothing is rendered twice, and a reply is never made of its text again:
two token sequences may have the same text, and only one of them was drawn.

That is right for templates that only append. Trial dialogues find out, once, before a run:

    R(k)      k messages and the k - 1 replies between them, up to where the model speaks
    R(k + 1) = R(k) + white space + reply + piece,  with the same piece for every k and whatever the reply thinks

Invariants: the tokens of `first` are those of a single prompt with the same messages (`encode_chat`). A template is
used only if the equation above holds for it, it says every part that it is given, and it says the same tomorrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.model.loading_models import RAW, encode_chat, find_template
from headway.llm.model.types import ModelError, Tokenizer

QUESTION, REPLY, OBSERVATION = "question-7F3A", "reply-7F3A", "observation-7F3A"
"""Texts of the trial dialogues, which no template says by itself."""
THOUGHT = f"<think>\nthought-7F3A\n</think>\n\n{REPLY}"
TRIAL_TURNS = 4
REMEMBERED, REMEMBERED_TEXT = 1024, 2048
"""Observations whose tokens are remembered, and how many characters they may have."""
_SHOWN = 48

Chat = list[JsonObject]


class Conversation:
    """Makes the tokens of what is said to a model: it knows the template and its options, and nothing of an episode."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        chat_template: str = "",
        chat_template_options: Mapping[str, SettingValue] | None = None,
        system_prompt: str = "",
        tools: Sequence[Mapping[str, SettingValue]] = (),
        reply_prefix: str = "",
        observation_role: str = "user",
    ) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self._template_name = chat_template
        self._template = find_template(tokenizer, chat_template, chat_template_options)
        self._options = dict(chat_template_options or {})
        self.system_prompt = system_prompt
        self._tools = tuple(tools)
        self._role = observation_role
        self._said: dict[str, tuple[int, ...]] = {}  # what observations became
        self._lead = ""  # white space between the begin of a reply and its text, which the model draws
        self.end_token: int | None = None
        """The token with which a reply ends its turn; None where the template knows of none."""
        if self._template is None:
            encode_chat(tokenizer, self._opening(QUESTION), template=chat_template, tools=tools)  # refuses the tools
        else:
            self._try_out()
            self._known = self._rendered(self._opening(QUESTION)) + self._lead + REPLY
            self.end_token = self._found_end()
        self.prefix: tuple[int, ...] = self._encoded(reply_prefix and self._lead + reply_prefix)
        """Tokens that every reply is made to begin with: they follow on `first` and on `following`, untrained."""
        self._gap = " " * (not reply_prefix[-1:].isspace()) if reply_prefix else self._lead  # before a written reply

    def first(self, text: str) -> tuple[int, ...]:
        """What an episode begins with: system prompt, tools, first message, the begin of the reply."""
        return self.opening(self._opening(text))

    def opening(self, messages: Chat) -> tuple[int, ...]:
        """The same of a conversation that somebody else has begun: all its messages, the begin of the reply."""
        template = self._template_name
        return encode_chat(self._tokenizer, messages, template=template, options=self._options, tools=self._tools)

    def following(self, text: str, *, ended: bool) -> tuple[int, ...]:
        """What stands between a reply and the next one: the end of its turn, the observation, the begin of a reply.

        `ended`: the last token that was drawn is `end_token`; what is left of the turn's end follows on it.
        """
        tokens = self._said.get(text)
        if tokens is None:
            tokens = self._following([{"role": self._role, "content": text}])
            if len(text) <= REMEMBERED_TEXT:  # games say the same again and again
                if len(self._said) >= REMEMBERED:
                    self._said.clear()
                self._said[text] = tokens
        return self._behind(tokens, ended)

    def following_messages(self, messages: Chat, *, ended: bool) -> tuple[int, ...]:
        """The same of any messages, also of several: results of tools, or a reply that somebody else wrote."""
        return self._behind(self._following(messages), ended)

    def _following(self, messages: Chat) -> tuple[int, ...]:
        return self._encoded(self._between(messages))

    def _behind(self, tokens: tuple[int, ...], ended: bool) -> tuple[int, ...]:
        if not ended or self.end_token is None:
            return tokens
        return tokens[tokens.index(self.end_token) + 1 :]

    def written_reply(self, text: str) -> tuple[int, ...]:
        """A reply that somebody else wrote, as the model would have to draw it: behind the prefix, with its end."""
        end = self._tokenizer.eos_token_id if self.end_token is None else self.end_token
        gap = self._gap if text[:1].strip() else ""
        return (*self._encoded(gap + text), *(() if end is None else (end,)))

    # ---------------------------------------------------------------------------------------------------- rendering
    def _opening(self, text: str) -> Chat:
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": text}]

    def _dialogue(self, turns: int, reply: str = REPLY) -> Chat:
        """A trial dialogue with so many messages and the replies between them."""
        more = [{"role": "assistant", "content": reply}, {"role": self._role, "content": OBSERVATION}]
        return [*self._opening(QUESTION), *more * (turns - 1)]

    def _between(self, messages: Chat) -> str:
        """What the template puts behind a reply when this is said to it, up to where the model speaks again."""
        if self._template is None:
            text = "\n".join(message["content"] for message in messages)
            return f"\n{text}" if self._template_name == RAW else f"\n{text}\n"
        said = self._rendered([*self._dialogue(2)[:-1], *messages])
        if not said.startswith(self._known):
            text = str(messages[0].get("content"))[:80]
            raise self._refused("changes what was said before", f"{_differing(self._known, said)} with {text!r}")
        return said[len(self._known) :]

    def _rendered(self, messages: Chat, *, reply_follows: bool = True, **options: SettingValue) -> str:
        from jinja2 import TemplateError

        given: JsonObject = {"chat_template": self._template, "tools": [dict(one) for one in self._tools] or None}
        given |= {"add_generation_prompt": reply_follows, "tokenize": False, **self._options, **options}
        try:
            return str(self._tokenizer.apply_chat_template(messages, **given))
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            raise self._refused("cannot write a conversation of", f"{roles}: {_first_line(error)}") from None

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False)) if text else ()

    def _found_end(self) -> int | None:
        """The first special token behind a reply, if it comes before the next message does."""
        closed = self._rendered(self._dialogue(2)[:-1], reply_follows=False)
        between = self._between(self._dialogue(2)[-1:])
        tail = closed[len(self._known) :] if closed.startswith(self._known) else ""
        same = next((i for i, (a, b) in enumerate(zip(tail, between, strict=False)) if a != b), len(tail))
        special = _special_tokens(self._tokenizer)
        return next((token for token in self._encoded(between[:same]) if token in special), None)

    # ----------------------------------------------------------------------------------------------- trial dialogues
    def _try_out(self) -> None:
        """Refuses a template that does not only append, or that leaves out what it is given."""
        said = [self._rendered(self._dialogue(turns)) for turns in range(1, TRIAL_TURNS + 1)]  # R(1), R(2) ...
        self._needs_every_part(said)
        pieces = []
        for before, after in itertools.pairwise(said):
            if not after.startswith(before):
                raise self._refused("changes what was said before", _differing(before, after))
            self._lead, found, piece = after[len(before) :].partition(REPLY)
            if not found or self._lead.strip():
                begun = after[len(before) :][:_SHOWN]
                raise self._refused("does not begin a reply where the model speaks", f"then comes {begun!r}")
            pieces.append(piece)
        for number, piece in enumerate(pieces[1:], 2):
            if piece != pieces[0]:
                shown = _differing(pieces[0], piece)
                raise self._refused("says a message differently at another place", f"after reply {number} {shown}")
        thinking = self._rendered(self._dialogue(3, THOUGHT))
        expected = said[0] + (self._lead + THOUGHT + pieces[0]) * 2
        if thinking != expected:
            shown = _differing(expected, thinking)
            raise self._refused("changes replies with thoughts (<think> ... </think>) once more is said", shown)
        if not self._can_do_without_a_clock():
            raise self._refused("says the date", "give one with chat_template_options")

    def _can_do_without_a_clock(self) -> bool:
        """Can it write the same dialogue when the function with which templates read the clock is none?"""
        try:
            self._rendered(self._dialogue(2), strftime_now=None)
        except ModelError:
            return False
        return True

    def _needs_every_part(self, said: list[str]) -> None:
        """Refuses a template that says nothing of the system prompt, the tools, or a message."""
        if self.system_prompt and self.system_prompt.strip() not in said[0]:
            raise self._refused("drops the system prompt", f"{self.system_prompt[:_SHOWN]!r} would not be said")
        if self._tools and self._rendered(self._dialogue(1), tools=None) == said[0]:
            raise self._refused("does not read 'tools'", "the model would not be told")
        for part, role, text in ((QUESTION, "user", said[0]), (OBSERVATION, self._role, said[1])):
            if part not in text:
                raise self._refused(f"drops messages of the role {role!r}", "the model would not be told")

    def _refused(self, what: str, how: str) -> ModelError:
        whose = f"of {self._name!r}" if self._name else "of this model"
        if self._template_name:
            whose = repr(self._template_name)
        return ModelError(
            f"the chat template {whose} cannot be used over several turns: it {what} ({how}); "
            "name another one with chat_template, or 'none' for the texts as they are"
        )


def _differing(before: str, after: str) -> str:
    """Shows where two texts begin to differ: `'... a' becomes '... b'`."""
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    begin = max(0, at - _SHOWN // 3)
    return f"{before[begin : at + _SHOWN]!r} becomes {after[begin : at + _SHOWN]!r}"


def _special_tokens(tokenizer: Any) -> set[int]:
    """Tokens that are written by templates and by ends, never by texts."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    special = {number for number, token in added.items() if token.special}
    return special | set(getattr(tokenizer, "all_special_ids", ())) | {tokenizer.eos_token_id}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
