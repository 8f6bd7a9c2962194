"""Models made on the spot: the words of a game, a folder like any other, and names that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.agents.games.lights import Lights  # noqa: E402
from headway.llm.model.conversation import Conversation  # noqa: E402
from headway.llm.model.loading_models import load_config, load_model, load_tokenizer, locate, stop_tokens  # noqa: E402
from headway.llm.model.tiny_llama import UNKNOWN, WordModel, make_word_model, word_tokenizer  # noqa: E402
from headway.llm.model.types import ModelError  # noqa: E402

GAME = """
class Echo:
    max_turns = 1
    def __init__(self, more=""): self.more = more
    def reset(self, seed): return "Say yes"
    def step(self, reply): return None
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))


def test_a_made_model_is_loaded_like_any_other(tmp_path: Path) -> None:
    folder = str(make_word_model(["red", "blue", "."], tmp_path / "model", hidden=16, layers=1, heads=2))
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    tokens = Conversation(tokenizer).first("red blue.")
    assert tokenizer.decode(list(tokens)) == "<user> red blue . <end> <assistant>"
    assert model(input_ids=torch.tensor([tokens])).logits.shape == (1, 6, load_config(folder).vocab_size)
    assert stop_tokens(folder, tokenizer) == (tokenizer.eos_token_id,)
    assert load_config(folder).hidden_size == 16


def test_words_are_letters_that_stand_together_or_one_other_character() -> None:
    tokenizer = word_tokenizer(["Off", "red", "57", ",", "!", "*"])
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("Off:\nred,57!!**")) == [
        *("Off", UNKNOWN, "red", ",", "57", "!", "!", "*", "*")
    ]


def test_the_same_definition_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> list[float]:
        folder = make_word_model(["a", "b"], tmp_path / name, hidden=16, layers=1, heads=2, seed=seed)
        found: list[float] = load_model(str(folder)).get_input_embeddings().weight.flatten().tolist()
        return found

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    assert weights("one", 0) == weights("two", 0) != weights("three", 1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_game_by_name_is_made_once_and_knows_every_word_of_it() -> None:
    folder = Path(locate("made:lights"))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert Path(locate("made:lights")) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    tokenizer = load_tokenizer("made:lights")
    unknown = tokenizer.encode(UNKNOWN, add_special_tokens=False)[0]
    for text in Lights().texts():
        assert unknown not in tokenizer.encode(text)
    assert 250_000 < sum(p.numel() for p in load_model("made:lights").parameters()) < 320_000


def test_options_of_the_game_give_a_model_of_its_own() -> None:
    assert locate('made:lights {"lights": 8}') != locate("made:lights")
    assert "gold" in load_tokenizer('made:lights {"lights": 8}').get_vocab()  # type: ignore[attr-defined]


def test_a_game_of_your_own_lists_its_words(tmp_path: Path) -> None:
    file = tmp_path / "echo_game.py"
    file.write_text(GAME)
    with pytest.raises(ModelError, match=r"needs the words of the game: give Echo a method vocabulary\(\)"):
        locate(f"made:{file}:Echo")
    other = tmp_path / "echo_game_with_words.py"
    other.write_text(GAME + "    def vocabulary(self): return ['Say', 'yes', *self.more.split()]\n")
    assert "maybe" in load_tokenizer(f'made:{other}:Echo {{"more": "maybe no"}}').get_vocab()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("made:lihgts", "unknown game 'lihgts'; did you mean 'lights'"),
        ("made:lights {5}", "env_options must be a JSON object"),
        ('made:lights {"lamps": 3}', "unknown option of environment lights 'lamps'"),
        ("/no/such/model", "does not exist; allowed: 'smollm2', made:GAME, a folder"),
    ],
)
def test_names_that_cannot_be_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        locate(name)
    assert "\n" not in str(refused.value)


def test_shapes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"hidden=18 must be a multiple of 2 \* heads = 8"):
        WordModel(("a",), hidden=18)
    with pytest.raises(ModelError, match="needs layers >= 1, received 0"):
        WordModel(("a",), layers=0)
    with pytest.raises(ModelError, match="at least one word"):
        WordModel(())
    with pytest.raises(ModelError, match="exists: choose another folder"):
        make_word_model(["a"], tmp_path)
