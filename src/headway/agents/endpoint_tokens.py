"""Tokens of what agents say to a model: whole openings, and what follows on a reply.

A model's own chat template says the tools where it reads them. Where it does not, they are told at the end of the
system message, calls that somebody else has made are said as the model would write them, and results of tools are
messages of the user in `<tool_response>`: in the words of the templates that have a place for all of it.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headway.agents.chat_api import ChatMessage, Refused
from headway.core.types_opaque import JsonObject, SettingValue
from headway.llm.model.conversation import Chat, Conversation
from headway.llm.model.loading_models import find_template
from headway.llm.model.types import ModelError, Tokenizer

KEPT = 32
"""Lists of tools whose conversations are kept; others are tried out again when they come back."""
LONG = 2**14
"""Characters; making tokens of fewer takes some hundredths of a second."""
TOLD = """# Tools

You may call one or more functions. Their signatures are within <tools></tools>:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class ChatTokens:
    """Makes tokens of messages, for many threads: one at a time, because tokenizers are not made for more.

    Long messages have a tokenizer of their own, so that short ones do not wait for them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        chat_template: str = "",
        chat_template_options: Mapping[str, SettingValue] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._for_long: ChatTokens | None = None
        self._given: dict[str, Any] = {
            "name": name,
            "chat_template": chat_template,
            "chat_template_options": chat_template_options,
        }
        template = find_template(tokenizer, chat_template, chat_template_options) or ""
        self._reads_tools = re.search(r"\btools\b", template) is not None
        self._lock = threading.Lock()
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._roles: set[tuple[str, str]] = set()  # tools and roles that are known to be said
        self.end_token = self._conversation(()).end_token
        """With which a reply ends its turn; None where the template knows of none."""

    def opening(self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject]) -> tuple[int, ...]:
        """A whole conversation, up to where the model speaks."""
        one = self._for(messages)
        with one._lock:
            return one._said(lambda: one._conversation(tools).opening(one._chat(messages, tools)))

    def following(
        self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], *, ended: bool
    ) -> tuple[int, ...]:
        """What stands between a reply and the next one, where these messages are said."""
        one = self._for(messages)
        with one._lock:
            chat = one._chat(messages, ())
            for role in dict.fromkeys(message["role"] for message in chat):
                one._need(role, tools)
            return one._said(lambda: one._conversation(tools).following_messages(chat, ended=ended))

    def texts_of(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Each token by itself."""
        with self._lock:
            return tuple(self._tokenizer.decode([int(token)]) for token in tokens)

    def _for(self, messages: Sequence[ChatMessage]) -> ChatTokens:
        if sum(len(message.text) for message in messages) < LONG:
            return self
        with self._lock:
            if self._for_long is None:
                self._for_long = ChatTokens(copy.deepcopy(self._tokenizer), **self._given)
        return self._for_long

    def _need(self, role: str, tools: Sequence[JsonObject]) -> None:
        """Refuses a role whose messages the template leaves out."""
        key = json.dumps(tools, sort_keys=True), role
        if key in self._roles:
            return
        follow = partial(self._conversation(tools).following_messages, ended=False)
        one, two = (self._said(partial(follow, [{"role": role, "content": text}])) for text in ("one", "two"))
        if one == two:
            raise Refused(f"the chat template drops messages of the role {role!r}: the model would not be told")
        self._roles.add(key)

    def _said(self, make: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        from jinja2 import TemplateError

        try:
            return make()
        except (ModelError, TemplateError, TypeError, LookupError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise Refused(lines[0], code="chat_template") from None

    def _conversation(self, tools: Sequence[JsonObject]) -> Conversation:
        told = tuple(tools) if self._reads_tools else ()
        key = json.dumps(told, sort_keys=True)
        if key not in self._conversations:
            self._conversations[key] = Conversation(self._tokenizer, tools=told, **self._given)
        self._conversations.move_to_end(key)
        while len(self._conversations) > KEPT:
            self._conversations.popitem(last=False)
        return self._conversations[key]

    def _chat(self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject]) -> Chat:
        """As the template takes them; `tools` are told in words where it does not read them."""
        if self._reads_tools:
            return [_for_templates(message) for message in messages]
        chat = [_in_words(message) for message in messages]
        if tools:
            told = TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
            if chat[0]["role"] == "system":
                chat[0] = {**chat[0], "content": f"{chat[0]['content']}\n\n{told}"}
            else:
                chat.insert(0, {"role": "system", "content": told})
        return chat


def _for_templates(message: ChatMessage) -> JsonObject:
    said: JsonObject = {"role": message.role, "content": message.text}
    if message.calls:
        said["tool_calls"] = [call.for_templates() for call in message.calls]
    if message.call_uid:
        said["tool_call_id"] = message.call_uid
    return said


def _in_words(message: ChatMessage) -> JsonObject:
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
    parts = [message.text] * bool(message.text or not message.calls) + [call.written() for call in message.calls]
    return {"role": message.role, "content": "\n".join(parts)}
