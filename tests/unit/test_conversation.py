"""What is said to a model over several turns: the tokens of its template, each message once, and no reply rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.llm.model.conversation import Conversation
from headway.llm.model.loading_models import encode_chat
from headway.llm.model.types import ModelError
from headway.llm.rollouts_episode import EpisodeBuilder
from headway.testing.tiny_models import tiny_tokenizer

CHATML = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool['function']['name'] }}{% endfor %}<|end|>\n{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + '\n' + message['content'] | trim + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
INSTRUCTIONS = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<<SYS>>' + message['content'] + '<</SYS>>' }}"
    "{% elif message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + ' <|end|>' }}{% endif %}{% endfor %}"
)
"""Replies begin with a space that the model draws, and nothing says that it is to speak."""
WITHOUT_THOUGHTS = CHATML.replace(
    "message['content'] | trim",
    "(message['content'].split('</think>')[-1] if message['role'] == 'assistant' and not loop.last"
    " else message['content']) | trim",
)
COUNTED = CHATML.replace(
    "'\n' + message['content']",
    "(' ' + loop.index | string if message['role'] == 'user' else '') + '\n' + message['content']",
)
DATED = "{{ strftime_now('%d %b %Y') }}" + CHATML
LAST_MARKED = CHATML.replace("message['content'] | trim", "('!' if loop.last else '') + message['content']")
WITHOUT_SYSTEM = CHATML.replace(
    "{% for message in messages %}", "{% for message in messages if message['role'] != 'system' %}"
)
ONLY_USERS = CHATML.replace(
    "{% for message in messages %}", "{% for message in messages if message['role'] != 'tool' %}"
)
NO_BEGIN = CHATML.replace("{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}", "")
NO_SYSTEM_ROLE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


def tokenizer_with(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def told(conversation: Conversation, tokenizer: Any, *, ended: bool = True) -> list[int]:
    """Three messages with two replies between them, as an episode would lay them end to end."""
    tokens = list(conversation.first("Guess"))
    for reply, text in (("four", "Lower"), ("two", "Right")):
        tokens += tokenizer.encode(reply, add_special_tokens=False)
        if ended and conversation.end_token is not None:
            tokens.append(conversation.end_token)
        tokens += conversation.following(text, ended=ended and conversation.end_token is not None)
    return tokens


def whole(tokenizer: Any, system: str = "", role: str = "user", tools: tuple[Any, ...] = ()) -> tuple[int, ...]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": "Guess"}]
    for reply, text in (("four", "Lower"), ("two", "Right")):
        messages += [{"role": "assistant", "content": reply}, {"role": role, "content": text}]
    return encode_chat(tokenizer, messages, tools=tools)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_what_is_said_turn_by_turn_are_the_tokens_of_the_whole_conversation(system: str, ended: bool) -> None:
    tokenizer = tokenizer_with(CHATML)
    conversation = Conversation(tokenizer, system_prompt=system)
    assert tuple(told(conversation, tokenizer, ended=ended)) == whole(tokenizer, system)


def test_the_end_of_a_turn_is_said_only_as_far_as_the_reply_has_not_drawn_it() -> None:
    tokenizer = tokenizer_with(CHATML)
    conversation = Conversation(tokenizer)
    assert conversation.end_token == tokenizer.eos_token_id
    cut, ended = (conversation.following("Lower", ended=ended) for ended in (False, True))
    assert cut == (conversation.end_token, *ended)
    assert tokenizer.decode(list(ended)) == "\n<|user|>\nLower<|end|>\n<|assistant|>\n"


def test_a_template_without_an_end_of_turns_has_none_to_add() -> None:
    tokenizer = tiny_tokenizer()
    conversation = Conversation(tokenizer)
    assert conversation.end_token is None
    assert tokenizer.decode(list(conversation.following("ho", ended=False))) == "<|user|>ho<|assistant|>"
    assert conversation.written_reply("yes")[-1] == tokenizer.eos_token_id


def test_white_space_before_a_reply_is_for_the_model_to_draw() -> None:
    tokenizer = tokenizer_with(INSTRUCTIONS)
    conversation = Conversation(tokenizer, system_prompt="Be brief.")
    assert tokenizer.decode(list(conversation.first("Guess"))) == "<<SYS>>Be brief.<</SYS>>[INST] Guess [/INST]"
    assert tokenizer.decode(list(conversation.written_reply("four"))) == " four<|end|>"
    assert tokenizer.decode(list(conversation.following("Lower", ended=True))) == "[INST] Lower [/INST]"
    assert tokenizer.decode(list(conversation.following("Lower", ended=False))) == " <|end|>[INST] Lower [/INST]"


def test_replies_begin_with_their_prefix_and_written_ones_follow_it() -> None:
    tokenizer = tokenizer_with(CHATML)
    conversation = Conversation(tokenizer, reply_prefix="I go")
    assert tokenizer.decode(list(conversation.prefix)) == "I go"
    assert tokenizer.decode([*conversation.prefix, *conversation.written_reply("left")]) == "I go left<|end|>"
    assert conversation.first("Where?") == Conversation(tokenizer).first("Where?")  # it is said by itself
    assert Conversation(tokenizer).prefix == ()


def test_observations_may_have_a_role_of_their_own_and_tools_are_told() -> None:
    tokenizer = tokenizer_with(CHATML)
    conversation = Conversation(tokenizer, observation_role="tool", tools=[TOOL])
    assert tuple(told(conversation, tokenizer)) == whole(tokenizer, role="tool", tools=(TOOL,))
    assert "<|tool|>\nLower" in tokenizer.decode(list(conversation.following("Lower", ended=True)))
    assert "look" in tokenizer.decode(list(conversation.first("Guess")))


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (WITHOUT_THOUGHTS, {}, "changes replies with thoughts .* once more is said .*thought-7F3A.* becomes"),
        (COUNTED, {}, "says a message differently at another place .after reply 2 .*3.* becomes .*5"),
        (DATED, {}, "says the date"),
        (LAST_MARKED, {}, "changes what was said before .*!question.* becomes .*question"),
        (WITHOUT_SYSTEM, {"system_prompt": "Be brief."}, "drops the system prompt .'Be brief.' would not be said"),
        (NO_SYSTEM_ROLE, {"system_prompt": "Be brief."}, "cannot write .* of .system, user: System role not supported"),
        (ONLY_USERS, {"observation_role": "tool"}, "drops messages of the role 'tool'"),
        (NO_BEGIN, {}, "does not begin a reply where the model speaks"),
        (INSTRUCTIONS, {"tools": [TOOL]}, "does not read 'tools'"),
    ],
)
def test_a_template_that_does_not_only_append_is_refused_by_name(
    template: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        Conversation(tokenizer_with(template), name="my/model", **options)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("the chat template of 'my/model' cannot be used over several turns: it ")
    assert "name another one with chat_template" in str(refused.value)


def test_what_a_template_leaves_out_matters_only_where_it_is_given() -> None:
    for template in (WITHOUT_SYSTEM, NO_SYSTEM_ROLE, ONLY_USERS):
        tokenizer = tokenizer_with(template)
        assert tuple(told(Conversation(tokenizer), tokenizer)) == whole(tokenizer)


def test_a_template_may_come_from_a_file_and_read_options(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ greeting }}" + CHATML)
    tokenizer = tiny_tokenizer()
    conversation = Conversation(tokenizer, chat_template=str(file), chat_template_options={"greeting": "Hello"})
    assert tokenizer.decode(list(conversation.first("Guess"))).startswith("Hello<|user|>\nGuess")
    file.with_name("counted.jinja").write_text(COUNTED)
    with pytest.raises(ModelError, match=r"the chat template '.*counted.jinja' cannot be used over several turns"):
        Conversation(tokenizer, chat_template=str(file.with_name("counted.jinja")))
    with pytest.raises(ModelError, match="the chat template does not read 'greting'"):
        Conversation(tokenizer, chat_template=str(file), chat_template_options={"greting": "Hello"})


@pytest.mark.parametrize(("template", "chosen", "end"), [(CHATML, "none", ""), (None, "", "\n")])
def test_a_base_model_gets_the_texts_as_they_are(template: str | None, chosen: str, end: str) -> None:
    tokenizer = tokenizer_with(template)
    conversation = Conversation(tokenizer, chat_template=chosen, system_prompt="Be brief.")
    assert tokenizer.decode(list(conversation.first("Guess"))) == f"Be brief.\nGuess{end}"
    assert tokenizer.decode(list(conversation.following("Lower", ended=True))) == f"\nLower{end}"
    assert conversation.end_token is None
    with pytest.raises(ModelError, match="no chat template that could say 'tools'"):
        Conversation(tokenizer, chat_template=chosen, tools=[TOOL])


def ambiguous_tokenizer() -> Any:
    """`ab` is one token, or two: the text says nothing about which of them were drawn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<|end|>", "<|user|>", "<|assistant|>", *alphabet, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    fast.chat_template = CHATML
    return fast


def test_what_was_drawn_stands_in_the_record_as_it_was_drawn() -> None:
    tokenizer = ambiguous_tokenizer()
    conversation = Conversation(tokenizer)
    drawn = [tokenizer.convert_tokens_to_ids("a"), tokenizer.convert_tokens_to_ids("b"), tokenizer.eos_token_id]
    text = tokenizer.decode(drawn, skip_special_tokens=True)
    assert tokenizer.encode(text, add_special_tokens=False) != drawn[:2]  # made of its text again it would be another
    builder = EpisodeBuilder(conversation.first("Say ab."))
    builder.add_reply(drawn, [-1.0, -2.0, -0.5], 3)
    builder.add_observation(conversation.following(f"You said {text}.", ended=True), 3)
    builder.add_reply(drawn, [-1.0, -2.0, -0.5], 4)
    record = builder.finish("done")
    assert record.tokens[record.trained].tolist() == drawn * 2
    assert "You said ab." in tokenizer.decode(record.tokens[~record.trained].tolist())
    assert (
        tokenizer.encode(tokenizer.decode(record.tokens.tolist()), add_special_tokens=False) != record.tokens.tolist()
    )
