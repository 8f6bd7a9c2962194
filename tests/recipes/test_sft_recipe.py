"""Imitation as a whole: a model that learns, the same bits as a plain script, and bad lines by their number."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from command_runs import refused, run_of  # noqa: E402
from waiting import patient  # noqa: E402

from headway.agents.games.corridor import Corridor  # noqa: E402
from headway.agents.games.lights import Lights  # noqa: E402
from headway.coordinator.role_calls import RunFailed  # noqa: E402
from headway.coordinator.run_result import RunResult  # noqa: E402
from headway.core.types import Batch, Rollout, Snapshot, Span, Ticket, derive_seed  # noqa: E402
from headway.llm.model.loading_models import load_model, load_tokenizer, locate  # noqa: E402
from headway.llm.model.tiny_llama import make_word_model  # noqa: E402
from headway.llm.rollouts_episode import EpisodeBuilder, Episodes  # noqa: E402
from headway.llm.sft import SFTConfig, stations  # noqa: E402
from headway.llm.tasks.chat_files import parted, read_chats  # noqa: E402
from headway.llm.train.imitation_learner import ImitationLearner  # noqa: E402
from headway.llm.train.imitation_settings import ImitationSettings  # noqa: E402
from headway.runs.config import ConfigError, read_values  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.runs.folder import RunFolder  # noqa: E402
from headway.runs.launch_session import launch  # noqa: E402
from headway.testing.tiny_models import save_tiny_model, tiny_model, tiny_tokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
USER, ASSISTANT = "user", "assistant"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sft")
    make_word_model(Lights.vocabulary(), root / "words", hidden=32, layers=1, heads=2, context=256)
    save_tiny_model(root / "model")
    chats = [[(USER, f"Say {n}."), (ASSISTANT, str(n)), (USER, "Again"), (ASSISTANT, f"{n} {n}")] for n in range(20)]
    write_chats(root / "chats.jsonl", *chats)
    return root


def write_chats(path: Path, *chats: list[tuple[str, str]], **more: Any) -> Path:
    lines = [{"messages": [{"role": role, "content": text} for role, text in chat], **more} for chat in chats]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def values_of(folder: Path, **changes: Any) -> dict[str, Any]:
    source = {"data": str(folder / "chats.jsonl")} if "data" not in changes and changes.get("env") == "" else {}
    return {
        "env": "lights",
        "model": str(folder / ("model" if source or changes.get("data") else "words")),
        "tickets_per_batch": 6,
        "updates": 3,
        "max_lead": 0,
        "max_context_tokens": 128,
        "evaluate_every": 0,
        "eval_games": 0,
        "device": "cpu",
        "start_deadline_s": patient(120),
        **source,
        **changes,
    }


def config_of(folder: Path, **changes: Any) -> SFTConfig:
    config = read_values(SFTConfig, values_of(folder, **changes))
    assert isinstance(config, SFTConfig)
    return config


def run(config: SFTConfig, runtime: str = "inline", folder: Path | None = None, *, resume: bool = False) -> RunResult:
    place = None if folder is None else RunFolder(folder)
    return launch(stations(config), config.settings(), runtime=runtime, folder=place, resume=resume)


def plain_script(config: SFTConfig) -> Any:
    """Play, train, play: without a coordinator."""
    built = stations(config)
    collector, learner = built.collector(0), built.learner()
    for version in range(config.updates or 0):
        first = version * config.tickets_per_batch
        rollouts = [
            collector.collect(
                Ticket(index, derive_seed(config.seed, "ticket", index), version, 0), Snapshot(version, None)
            )
            for index in range(first, first + config.tickets_per_batch)
        ]
        learner.learn(Batch(version, tuple(rollouts)))
    return learner.snapshot()


def collected(config: SFTConfig, index: int, version: int = 0) -> Episodes:
    ticket = Ticket(index, derive_seed(config.seed, "ticket", index), version, 0)
    payload = stations(config).collector(0).collect(ticket, Snapshot(version, None)).payload
    assert isinstance(payload, Episodes)
    return payload


# -- runs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["inline", "threads", "processes"])
def test_without_a_lead_a_run_is_the_plain_script_bit_for_bit(folder: Path, runtime: str) -> None:
    config = config_of(folder, num_minibatches=2)
    assert fingerprint(run(config, runtime).weights) == fingerprint(plain_script(config))


def test_an_update_that_is_not_finite_ends_the_run_in_one_line(folder: Path) -> None:
    with pytest.raises(RunFailed, match=r"the update on tickets 0, 1, 2, 3, 4, 5 at version 0 is not finite") as failed:
        run(config_of(folder, learning_rate=1e38))
    assert "\n" not in str(failed.value)


def test_a_lead_changes_no_bit_either_because_no_datum_depends_on_the_policy(folder: Path) -> None:
    config = config_of(folder, max_lead=2, updates=4)
    ahead = run(config, "threads")
    assert ahead.ledger.max_staleness is not None and ahead.ledger.max_staleness > 0
    assert fingerprint(ahead.weights) == fingerprint(plain_script(config))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_learn_what_one_learns(folder: Path) -> None:
    one, two = (run(config_of(folder, learner_ranks=ranks, adam_eps=1e-3)).weights for ranks in (1, 2))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.parametrize("env", ["lights", ""], ids=["games", "file"])
def test_a_run_resumed_from_its_middle_ends_with_the_same_bits(folder: Path, tmp_path: Path, env: str) -> None:
    config = config_of(folder, env=env, updates=4, save_every=1, keep_checkpoints=9, num_minibatches=2, max_lead=1)
    whole = run(config, "threads", tmp_path)
    store = sorted((tmp_path / "checkpoints").iterdir())
    for later in store:
        if int(later.name.partition("-v")[2]) > 2:
            shutil.rmtree(later)
    resumed = run(config, "threads", tmp_path, resume=True)
    assert resumed.updates == 4
    assert fingerprint(resumed.weights) == fingerprint(whole.weights)


def test_a_model_learns_what_the_expert_says(folder: Path) -> None:
    config = config_of(
        folder, expert_share=1, updates=60, learning_rate=1e-2, evaluate_every=60, evaluate_first=True, eval_records=8
    )
    result = run(config, "threads")
    first, last = result.scores[0], result.scores[-1]
    assert first.metrics["nll"] > 3.0 and first.metrics["token_accuracy"] < 0.3
    assert last.metrics["nll"] < 0.9 and last.metrics["token_accuracy"] > 0.6
    assert last.value == -last.metrics["nll"]
    assert result.metrics["nll"] < 0.9


def test_an_evaluation_plays_games_with_what_was_learned(folder: Path) -> None:
    changes = {"updates": 1, "evaluate_every": 1, "eval_games": 4, "eval_records": 2, "max_turn_tokens": 4}
    score = run(config_of(folder, **changes), "threads").scores[-1]
    assert score.value == -score.metrics["nll"]
    assert 0 <= score.metrics["success"] <= 1 and score.metrics["turns"] >= 1 and score.metrics["records"] == 2
    assert "return" in score.metrics and score.metrics["games"] == 4


@pytest.mark.parametrize(("rank", "bound"), [(0, 3.0), (8, 5.5)])
def test_a_model_learns_a_file_with_all_its_weights_or_with_adapters(folder: Path, rank: int, bound: float) -> None:
    config = config_of(
        folder, env="", lora_rank=rank, updates=30, learning_rate=1e-2, evaluate_every=30, eval_records=2
    )
    result = run(config)
    assert result.scores[-1].metrics["nll"] < bound  # at random: log 259 = 5.6
    assert result.scores[-1].metrics["records"] == 2


def test_the_folder_of_a_run_is_a_model_to_begin_with(folder: Path, tmp_path: Path) -> None:
    done = run_of(tmp_path / "first", "sft", **values_of(folder, runtime="inline", max_lead=0))
    place = Path(locate(str(done.path)))
    assert place.parent == done.path / "models"
    written = (place / "model.safetensors").stat().st_mtime_ns
    trained = dict(load_model(str(done.path)).named_parameters())
    assert fingerprint({name: p.detach() for name, p in trained.items()}) == done.recorded_fingerprint()
    assert (place / "model.safetensors").stat().st_mtime_ns == written
    assert load_tokenizer(str(done.path)).chat_template == load_tokenizer(str(folder / "words")).chat_template
    again = run_of(tmp_path / "second", "sft", **values_of(folder, model=str(done.path), updates=1, runtime="inline"))
    assert again.recorded_fingerprint() != done.recorded_fingerprint()


def test_a_run_that_saved_nothing_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("recipe: sft\n")
    assert "no checkpoint in" in refused(capsys, "run", "sft", "--model", str(tmp_path))


def test_without_a_word_about_it_the_model_is_made_for_the_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    for said, model in (
        ({}, "made:lights"),
        ({"env": "corridor"}, "made:corridor"),
        ({"env_options": {"lights": 6}}, 'made:lights {"lights": 6}'),
        ({"data": "chats.jsonl"}, "smollm2"),
    ):
        config = read_values(SFTConfig, said)
        assert isinstance(config, SFTConfig)
        assert config.model == model
    assert stations(read_values(SFTConfig, {}))  # type: ignore[arg-type]


# -- what is recorded -------------------------------------------------------------------------------


def test_games_are_recorded_as_a_policy_would_have_played_them(folder: Path) -> None:
    config = config_of(folder, expert_share=0.5)
    record, tokenizer = collected(config, 1, version=3), load_tokenizer(config.model)
    assert record.uid == "expert/1" and record.span == Span(3, 3)
    assert tokenizer.decode(record.prompt.tolist()).startswith("<user> Off : ")
    assert record.returns.tolist() == pytest.approx([1.0]) and record.success.tolist() == [1.0]
    assert record.turns.tolist() == [3] and record.end == ("done",)
    replies = np.split(record.tokens[record.trained], 3)
    assert all(len(reply) == 2 and reply[1] == tokenizer.eos_token_id for reply in replies)
    assert not record.log_probs.any()
    assert collected(config, 0).uid == "random/0"
    assert [collected(config, 1).tokens.tolist()] == [record.tokens.tolist()]


@pytest.mark.parametrize(("share", "experts"), [(0, 0), (0.25, 2), (0.5, 4), (1, 8)])
def test_experts_and_chance_take_turns_by_their_share(folder: Path, share: float, experts: int) -> None:
    collector = stations(config_of(folder, expert_share=share)).collector(0)
    rollouts = [collector.collect(Ticket(n, n, 0, 0), Snapshot(0, None)) for n in range(8)]
    assert sum(rollout.payload.uid.startswith("expert") for rollout in rollouts) == experts


def test_a_prefix_of_the_game_is_read_and_not_trained_on(folder: Path, tmp_path: Path) -> None:
    model = str(make_word_model(Corridor.vocabulary(), tmp_path / "model", hidden=16, layers=1, heads=2))
    record = collected(config_of(folder, env="corridor", model=model, expert_share=1, max_context_tokens=256), 0)
    tokenizer = load_tokenizer(model)
    assert tokenizer.decode(record.tokens.tolist()).startswith("I go ")
    drawn = tokenizer.decode(record.tokens[record.trained].tolist())
    assert set(drawn.replace("<end>", "").split()) <= {"left", "right"}


def test_only_what_the_assistant_says_is_trained_on(folder: Path, tmp_path: Path) -> None:
    chat = [("system", "Be brief."), (USER, "One?"), (ASSISTANT, "1"), (USER, "Two?"), (ASSISTANT, "2")]
    data = write_chats(tmp_path / "one.jsonl", chat, weight=2.5)
    record = collected(config_of(folder, env="", data=str(data)), 0)
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(record.tokens[record.trained].tolist()) == "1<|end|>2<|end|>"
    assert tokenizer.decode(record.prompt.tolist()) == "<|system|>Be brief.<|user|>One?<|assistant|>"
    assert tokenizer.decode(record.tokens[~record.trained].tolist()) == "<|user|>Two?<|assistant|>"
    assert dict(zip(record.part_names, record.parts[:, 0].tolist(), strict=True)) == {"weight": 2.5}


def test_replies_of_weight_0_are_only_read(folder: Path, tmp_path: Path) -> None:
    replies = [
        {"role": ASSISTANT, "content": text, "weight": w} for text, w in (("a", 0), ("b", 1), ("c", 0), ("d", 1))
    ]
    messages = [m for n, reply in enumerate(replies) for m in ({"role": USER, "content": f"{n}?"}, reply)]
    (tmp_path / "some.jsonl").write_text(json.dumps({"messages": messages}))
    record = collected(config_of(folder, env="", data=str(tmp_path / "some.jsonl")), 0)
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(record.tokens[record.trained].tolist()) == "b<|end|>d<|end|>"
    assert "a<|end|>" in tokenizer.decode(record.prompt.tolist())
    assert "c<|end|>" in tokenizer.decode(record.tokens[~record.trained].tolist())


def test_every_conversation_comes_once_an_epoch_and_the_held_out_ones_never(folder: Path) -> None:
    config = config_of(folder, env="", evaluate_every=1, eval_records=50, data_epochs=1, updates=None)
    collector = stations(config).collector(0)
    epochs = [
        [collector.collect(Ticket(n, n, 0, 0), Snapshot(0, None)).payload.uid for n in range(start, start + 18)]
        for start in (0, 18)
    ]
    assert len(set(epochs[0])) == 18 and set(epochs[0]) == set(epochs[1]) and epochs[0] != epochs[1]
    assert config.settings().plan.updates == 18 // 6
    assert config_of(folder, episodes=60, updates=None).settings().plan.updates == 10


def test_conversations_in_which_the_model_hears_the_same_are_on_one_side(tmp_path: Path) -> None:
    def line(k: int) -> str:
        said = [{"role": USER, "content": f"{k % 20}?"}, {"role": ASSISTANT, "content": f"answer {k}"}]
        return json.dumps({"messages": said})

    (tmp_path / "chats.jsonl").write_text("\n".join(line(k) for k in range(100)))
    kept, held_out = parted(read_chats(tmp_path / "chats.jsonl"), 32)
    heard = [{chat.remarks[0].text for chat in side} for side in (kept, held_out)]
    assert (len(kept), len(held_out)) == (90, 10)  # a tenth of the 20 questions: 2, each in 5 lines
    assert not heard[0] & heard[1]


# -- the loss ---------------------------------------------------------------------------------------


def rollout_of(weight: float | None, seed: int) -> Rollout:
    rng = np.random.default_rng(seed)
    builder = EpisodeBuilder(rng.integers(3, 90, 5))
    for turn in range(2):
        if turn:
            builder.add_observation(rng.integers(3, 90, 4), 0)
        reply = rng.integers(3, 90, 2 + seed)
        builder.add_reply(reply, np.zeros(len(reply), np.float32), 0)
    record = builder.finish("done", parts={} if weight is None else {"weight": weight})
    return Rollout(record, steps=1, span=Span(0, 0))


@pytest.mark.parametrize("weights", [(None, None), (1.0, 3.0)])
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_the_loss_is_the_mean_over_trained_tokens_as_the_model_itself_computes_it(
    weights: tuple[float | None, float | None], layout: Any
) -> None:
    rollouts = tuple(rollout_of(weight, seed) for seed, weight in enumerate(weights))
    learner = ImitationLearner(tiny_model, ImitationSettings(learning_rate=1e-9, layout=layout))
    found = learner.learn(Batch(0, rollouts)).metrics["nll"]
    model = tiny_model()
    total = count = 0.0
    for rollout, weight in zip(rollouts, weights, strict=True):
        record: Episodes = rollout.payload
        whole = torch.from_numpy(np.concatenate([record.prompt, record.tokens]).astype(np.int64))
        with torch.no_grad():
            logs = torch.log_softmax(model(input_ids=whole[None]).logits[0, :-1], -1)
        chosen = logs.gather(1, whole[1:, None])[len(record.prompt) - 1 :, 0][torch.from_numpy(record.trained)]
        total -= (weight or 1.0) * float(chosen.sum())
        count += (weight or 1.0) * len(chosen)
    assert found == pytest.approx(total / count, rel=1e-5)
    assert found < math.log(300)


def test_what_is_said_to_a_reply_gets_no_gradient() -> None:
    """Other words at the end of the last observation, behind which nothing is trained, change nothing at all."""
    updates = []
    for word in (7, 8):
        builder = EpisodeBuilder([3, 4, 5])
        builder.add_reply([6, 9], np.zeros(2, np.float32), 0)
        builder.add_observation([10, word], 0)
        learner = ImitationLearner(tiny_model, ImitationSettings(learning_rate=1e-2))
        learner.learn(Batch(0, (Rollout(builder.finish("turns"), steps=1, span=Span(0, 0)),)))
        updates.append(fingerprint(learner.snapshot()))
    assert updates[0] == updates[1]


# -- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "lights", "data": "x.jsonl"}, "imitate either players or a file"),
        ({"data_epochs": 2}, "data_epochs=2 needs data"),
        ({"env": "", "reply_prefix": "I"}, "reply_prefix='I' goes with env, received data="),
        ({"expert_share": 1.5}, "expert_share=1.5"),
        ({"microbatch_tokens": 64}, "microbatch_tokens=64 cannot hold an episode .max_context_tokens=128"),
        ({"lr_schedule": "cosine", "updates": None, "wall_s": 5}, "lr_schedule='cosine' needs updates"),
        ({"lr_floor": 0.1}, "lr_floor=0.1 goes with a learning rate that falls"),
        ({"expert_shar": 1}, "did you mean 'expert_share'"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(folder: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        config_of(folder, **values)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"chats.jsonl, line 2: not JSON"),
        ('{"message": []}', "line 2: unknown field 'messages'; did you mean 'message'"),
        ('{"messages": "hello"}', "line 2: 'messages' must be a list of messages with role and content"),
        ([(USER, "Hi")], "line 2: the last message is of the role 'user'; the assistant's comes last"),
        ([(USER, "Hi"), (USER, "Ho")], "line 2, message 2 is of the role 'user'; after an optional system message"),
        ([("tool", "Hi"), (ASSISTANT, "Ho")], "line 2, message 1 is of the role 'tool'"),
        ([(USER, "Hi"), ("assisstant", "Ho")], "line 2, message 2: unknown role 'assisstant'; did you mean"),
        ([(USER, "Hi"), (ASSISTANT, " ")], "line 2, message 2: the assistant says nothing"),
        ('{"messages": [{"role": "system", "content": "Be"}]}', "line 2: the assistant says nothing that could be"),
        ({"weight": 0}, "line 2: the weight of a line must be a number above 0, received 0"),
        ({"weight": "much"}, "received 'much'"),
        ([(USER, "Hi"), (ASSISTANT, "long " * 40)], "chats/2 has 2.. tokens, more than max_context_tokens=128"),
    ],
)
def test_a_line_that_cannot_be_imitated_is_named_before_a_run(
    folder: Path, tmp_path: Path, line: Any, message: str
) -> None:
    good = json.dumps({"messages": [{"role": USER, "content": "Hi"}, {"role": ASSISTANT, "content": "Ho"}]})
    if isinstance(line, list):
        line = json.dumps({"messages": [{"role": role, "content": text} for role, text in line]})
    elif isinstance(line, dict):
        line = json.dumps({**json.loads(good), **line})
    (tmp_path / "chats.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=message) as refusal:
        stations(config_of(folder, env="", data=str(tmp_path / "chats.jsonl")))
    assert "\n" not in str(refusal.value)


def test_episodes_that_are_too_long_are_left_out_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    data = write_chats(
        tmp_path / "two.jsonl", [(USER, "Hi"), (ASSISTANT, "long " * 40)], [(USER, "Hi"), (ASSISTANT, "Ho")]
    )
    config = config_of(folder, env="", data=str(data), on_long_episode="drop")
    collector = stations(config).collector(0)
    assert {collector.collect(Ticket(n, n, 0, 0), Snapshot(0, None)).payload.uid for n in range(4)} == {"two/2"}
    games = config_of(folder, max_context_tokens=20, on_long_episode="drop")
    rollout = stations(games).collector(0).collect(Ticket(1, 1, 0, 0), Snapshot(0, None))
    assert rollout.filtered and rollout.payload is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "lihgts"}, "unknown game 'lihgts'; did you mean 'lights'"),
        ({"env": "", "data": "/no/such.jsonl"}, "/no/such.jsonl does not exist"),
        ({"max_context_tokens": 512}, "max_context_tokens=512 is more than the 256 tokens that"),
        ({"system_prompt": "Be brief.", "chat_template": "system.jinja"}, "could not be read"),
    ],
)
def test_what_is_not_there_is_named_before_a_run(folder: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        stations(config_of(folder, **values))
    assert "\n" not in str(refusal.value)


def test_a_game_without_an_expert_can_only_be_played_at_random(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "dull_game.py"
    file.write_text(
        "from headway.agents import Step\n"
        "class Dull:\n"
        "    max_turns = 1\n"
        "    def reset(self, seed): return 'Press one .'\n"
        "    def step(self, reply): return Step('Off', 1.0, True)\n"
        "    def random_reply(self, rng): return rng.choice(['red', 'blue'])\n"
    )
    with pytest.raises(ValueError, match="Dull has no expert player: it has no method expert_reply"):
        stations(config_of(folder, env=f"{file}:Dull"))
    assert run(config_of(folder, env=f"{file}:Dull", expert_share=0, updates=1)).updates == 1
