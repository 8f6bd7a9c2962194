"""Trees end to end by FlexAttention or flash kernels, compiled layers and the fused head give plain numbers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_segments import random_segment

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.engine.gpu_share import GpuShare  # noqa: E402
from headway.llm.model.adapters import add_adapters  # noqa: E402
from headway.llm.rollouts_episode import EpisodeBuilder  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train import heads_layer_compiler as layer_compiler  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.llm.train.heads_layer_compiler import compile_layers, layers_of, undo_compiling  # noqa: E402
from headway.llm.train.imitation_learner import ImitationLearner  # noqa: E402
from headway.llm.train.imitation_settings import ImitationSettings  # noqa: E402
from headway.llm.train.kernels import BY_FLASH, Kernels, choose_kernels  # noqa: E402
from headway.llm.train.kernels_flex_attention import can_read_by_flash, expect_slow_attention  # noqa: E402
from headway.llm.train.kernels_layouts import choose_layout  # noqa: E402
from headway.llm.train.trees import ReplyTree, hidden_states, lay_out  # noqa: E402
from headway.llm.train.trees_flash_trees import FlashTable, seen  # noqa: E402
from headway.llm.train.without_dropout import without_dropout  # noqa: E402
from headway.testing.tiny_models import ROWS_KINDS, WINDOW, tiny_model  # noqa: E402
from headway.text_games.prior_learner_learner import PriorLearner  # noqa: E402
from headway.text_games.prior_learner_settings import PriorSettings  # noqa: E402

FLEX_KINDS = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "cohere", "granite", "opt")
"""Families that FlexAttention fits; those with sinks, or with an attention of their own, are read with dense masks."""
NO_FLEX_KINDS = ("gpt2", "gptj", "gpt_oss")
FLASH_KINDS = ("llama", "qwen2", "qwen3", "cohere", "granite", "opt")
"""Families without windows and caps."""

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # torch's compiler says it when it is imported
]


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """What would be compiled runs as it is written: everything around it is tested in milliseconds."""
    with torch.compiler.set_stance("force_eager"):
        yield


def batch() -> Batch:
    """Groups whose trees do not fit into one row of blocks."""
    random = np.random.default_rng(0)
    groups = []
    for prompt, lengths in ((WINDOW + 3, [WINDOW + 5, 3, 1]), (4, [2, 2 * WINDOW]), (60, [50, 40, 60]), (5, [1])):
        tokens = random.integers(3, 200, sum(lengths)).astype(np.int32)
        groups.append(
            Rollout(
                Group(
                    prompt=random.integers(3, 200, prompt).astype(np.int32),
                    tokens=tokens,
                    lengths=np.array(lengths),
                    log_probs=np.full(len(tokens), -5.0, np.float32),
                    versions=np.zeros(len(tokens), np.int32),
                    rewards=random.random(len(lengths)).astype(np.float32),
                ),
                steps=len(tokens),
            )
        )
    return Batch(0, tuple(groups))


def learner(kind: str, **settings: Any) -> GRPOLearner:
    return GRPOLearner(
        lambda: tiny_model(kind),
        GRPOSettings(learning_rate=1e-3, adam_eps=1e-4, **{"microbatch_tokens": 256, **settings}),
        load_reference=lambda: tiny_model(kind, seed=1),
        load_critic=lambda: tiny_model(kind, seed=2),
    )


def gradients(subject: GRPOLearner) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in subject._training.trained.named.items()}


def check_alike(one: GRPOLearner, other: GRPOLearner, given: Batch) -> None:
    """Both take an update: gradients and what is measured on the way agree to 1e-5."""
    found, expected = one.learn(given).metrics, other.learn(given).metrics
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-4, abs=1e-5), name
    mine = gradients(one)
    for name, gradient in gradients(other).items():
        torch.testing.assert_close(mine[name], gradient, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: name + text)


# -- FlexAttention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FLEX_KINDS)
def test_flex_learns_what_dense_learns(kind: str) -> None:
    flex = learner(kind, trainer_attention="flex")
    assert flex._training.kernels.windows is not None
    assert flex._training.sizes.windows is not None
    check_alike(flex, learner(kind), batch())


@pytest.mark.parametrize("kind", FLASH_KINDS)
def test_flash_learns_what_dense_learns(kind: str) -> None:
    flash = learner(kind, trainer_attention="flash")
    assert flash._training.kernels.windows == BY_FLASH
    assert can_read_by_flash(flash._training.model)
    check_alike(flash, learner(kind), batch())


@settings(max_examples=60, deadline=None)
@given(
    trees=st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(1, 30), max_size=5)), min_size=1, max_size=4),
    more=st.sampled_from((0, 128, 1024)),
)
def test_sequences_of_flash_kernels_see_what_trees_see(trees: list[tuple[int, list[int]]], more: int) -> None:
    lengths = np.array([n for prompt, replies in trees for n in (prompt, *replies)])
    firsts = np.cumsum([0, *(1 + len(replies) for _, replies in trees[:-1])])
    roots = np.repeat(firsts, [1 + len(replies) for _, replies in trees])
    starts, used = np.cumsum(lengths) - lengths, int(lengths.sum())
    length = -(-used // 128) * 128 + more
    table = FlashTable.of(starts, lengths, roots, length)
    span, root = np.repeat(np.arange(len(lengths)), lengths), np.repeat(roots, lengths)
    places = np.arange(used)
    expected = (places[:, None] >= places) & ((span[:, None] == span) | (root[:, None] == span))
    found = seen(length, table.own, table.queries, table.keys).numpy()
    np.testing.assert_array_equal(found[:used, :used], expected)
    assert not found[used:, :used].any()
    assert not found[:used, used:].any()
    for borders, longest in zip((table.own, table.queries, table.keys), table.longest, strict=True):
        assert borders[0] == 0 and borders[-1] == length
        assert (borders.diff() >= 0).all()
        assert longest >= borders.diff().max()  # or kernels leave out the end of the longest


def test_flash_is_not_for_windows_and_caps() -> None:
    for kind in ("mistral", "gemma2", "gemma3_text"):
        assert not can_read_by_flash(tiny_model(kind))
        with pytest.raises(ValueError, match=rf"^trainer_attention='flash' does not fit a model of type '{kind}': "):
            learner(kind, trainer_attention="flash")


def test_a_reference_and_a_critic_are_read_alike() -> None:
    settings: dict[str, Any] = {"kl_weight": 0.1, "estimator": "gae", "critic": "own", "entropy_weight": 0.01}
    for kind, attention in (("llama", "flex"), ("llama", "flash"), ("gemma2", "flex")):
        flex, dense = learner(kind, trainer_attention=attention, **settings), learner(kind, **settings)
        check_alike(flex, dense, batch())
        check_alike(flex, dense, batch())  # the critic has learned something by now


def test_adapters_and_checkpoints_go_with_it() -> None:
    def adapted() -> Any:
        model = add_adapters(tiny_model(), 4, 8.0, seed=1)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    settings: dict[str, Any] = {"learning_rate": 1e-3, "kl_weight": 0.1}
    flex = GRPOLearner(adapted, GRPOSettings(trainer_attention="flex", **settings))
    dense = GRPOLearner(adapted, GRPOSettings(**settings))
    check_alike(flex, dense, batch())
    check_alike(flex, dense, batch())


def episodes() -> Batch:
    rollouts = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        builder = EpisodeBuilder(random.integers(3, 90, 5))
        for turn in range(2):
            if turn:
                builder.add_observation(random.integers(3, 90, 4), 0)
            reply = random.integers(3, 90, 2 + seed)
            builder.add_reply(reply, np.zeros(len(reply), np.float32), 0)
        rollouts.append(Rollout(builder.finish("done"), steps=1))
    return Batch(0, tuple(rollouts))


def segments() -> Batch:
    return Batch(0, tuple(Rollout(segment) for segment in (random_segment(0), random_segment(1))))


def test_imitation_of_episodes_is_the_same() -> None:
    found = []
    for attention in ("flex", "flash", "dense"):
        settings = ImitationSettings(learning_rate=1e-2, adam_eps=1e-4, trainer_attention=attention)
        subject = ImitationLearner(tiny_model, settings)
        assert (subject._training.sizes.windows is None) == (attention == "dense")
        metrics = subject.learn(episodes()).metrics
        found.append((metrics["nll"], metrics["grad_norm"], subject.snapshot()))
    *others, dense = found
    for one in others:
        assert one[:2] == pytest.approx(dense[:2], rel=1e-5)
        for name, tensor in dense[2].items():
            torch.testing.assert_close(one[2][name], tensor, atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", ["imitation", "ppo"])
def test_a_prior_of_a_search_learns_the_same(loss: Any) -> None:
    found = []
    for attention in ("flex", "flash", "dense"):
        settings = PriorSettings(prior_loss=loss, prior_epochs=2, trainer_attention=attention)
        subject = PriorLearner(tiny_model, settings, load_reference=lambda: tiny_model(seed=1))
        assert (subject._training.sizes.windows is None) == (attention == "dense")
        found.append(subject.learn(segments()).metrics)
    assert found[0] == pytest.approx(found[2], rel=1e-3, abs=1e-5)
    assert found[1] == pytest.approx(found[2], rel=1e-3, abs=1e-5)


# -- a GPU that an engine generates on --------------------------------------------------------------


class _Turns(GpuShare):
    """Knows whether a turn is under way."""

    is_under_way = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        with super().turn():
            self.is_under_way = True
            yield
            self.is_under_way = False


WITH_OTHERS: dict[str, Any] = {"kl_weight": 0.1, "estimator": "gae", "critic": "own", "num_minibatches": 2}


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda load: GRPOLearner(load, GRPOSettings(microbatch_tokens=256)), batch),
        (lambda load: GRPOLearner(load, GRPOSettings(**WITH_OTHERS), load_reference=load, load_critic=load), batch),
        (lambda load: ImitationLearner(load, ImitationSettings()), episodes),
        (lambda load: PriorLearner(load, PriorSettings()), segments),
        (
            lambda load: PriorLearner(load, PriorSettings(prior_loss="ppo", prior_epochs=2), load_reference=load),
            segments,
        ),
    ],
    ids=["grpo", "grpo with a reference and a critic", "imitation", "prior by imitation", "prior by ppo"],
)
def test_every_pass_of_a_learner_is_in_a_turn(make: Callable[[Any], Any], given: Callable[[], Batch]) -> None:
    """So that it computes on a part of the GPU beside an engine: whatever it reads, forward and backward."""
    passes: list[tuple[str, bool]] = []

    def load() -> Any:
        model = tiny_model()
        embedding = model.get_input_embeddings()
        embedding.register_forward_hook(lambda *_: passes.append(("forward", turns.is_under_way)))
        embedding.weight.register_hook(lambda _: passes.append(("backward", turns.is_under_way)))
        return model

    turns = _Turns(torch.device("cpu"), 0.5)
    subject = make(load)
    passes.clear()  # those that have found out how the model is read
    subject._training.gpu = turns
    subject.learn(given())
    if isinstance(subject, GRPOLearner):  # at a lead: weights of version 1 are kept, and version 2 has tokens of theirs
        for version in (1, 2):
            old = given()
            for rollout in old.rollouts:
                rollout.payload.versions[:] = version - 1
            subject.learn(Batch(version, old.rollouts))
    assert {kind for kind, _ in passes} == {"forward", "backward"}
    assert all(is_inside for _, is_inside in passes)
    assert not turns.is_under_way


def test_the_share_of_a_gpu_is_the_setting_of_each_learner() -> None:
    for subject in (
        GRPOLearner(tiny_model, GRPOSettings(trainer_gpu_share=0.3)),
        ImitationLearner(tiny_model, ImitationSettings(trainer_gpu_share=0.3)),
        PriorLearner(tiny_model, PriorSettings(trainer_gpu_share=0.3)),
    ):
        assert subject._training.gpu.share == 0.3
    assert PriorSettings(trainer_gpu_share=0.3).token_settings().trainer_gpu_share == 0.3
    with pytest.raises(ValueError, match="less than or equal to 1"):
        GRPOSettings(trainer_gpu_share=1.5)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral"])
def test_flex_attention_itself_says_the_same_where_it_needs_no_gradient(kind: str) -> None:
    random = np.random.default_rng(1)
    trees = [
        ReplyTree(random.integers(3, 200, 70), tuple(random.integers(3, 200, n) for n in (50, 1, 40)), 0),
        ReplyTree(random.integers(3, 200, 9), (random.integers(3, 200, 100),), 3),
        ReplyTree(random.integers(3, 200, 90), (random.integers(3, 200, 30), random.integers(3, 200, 30)), 4),
    ]
    model = tiny_model(kind)
    with torch.no_grad():
        dense = hidden_states(model, lay_out(trees))
        windows = choose_kernels(model, "tree", "flex", "off", 512, no_autocast).windows
        expect_slow_attention()
        flex = hidden_states(model, lay_out(trees, windows=windows))
    torch.testing.assert_close(flex, dense, atol=1e-5, rtol=1e-5)


# -- choosing ---------------------------------------------------------------------------------------


def no_autocast(device: Any) -> Any:
    return contextlib.nullcontext()


def test_on_a_cpu_masks_are_dense_and_nothing_is_compiled() -> None:
    subject = learner("llama")
    assert subject._training.kernels == Kernels()
    assert subject._training.model.config._attn_implementation == "sdpa"
    assert not any("forward" in vars(layer) for layer in layers_of(subject._training.model))


@pytest.mark.parametrize("kind", NO_FLEX_KINDS)
def test_a_model_that_flex_does_not_fit_is_refused_and_left_as_it_was(kind: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^trainer_attention='flex' does not fit a model of type '{kind}': .*'auto'$"
    ):
        learner(kind, trainer_attention="flex")
    model = without_dropout(tiny_model(kind))
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match="does not fit"):
        choose_kernels(model, "tree", "flex", "on", 512, no_autocast)
    assert model.config._attn_implementation == before
    assert not any("forward" in vars(layer) for layer in layers_of(model))
    assert choose_layout(model) == "tree"


def test_rows_are_no_trees() -> None:
    for kind in ROWS_KINDS[:1]:
        with pytest.raises(ValueError, match=r"trainer_attention='flex' reads trees, and .* is read in rows; allowed"):
            learner(kind, trainer_attention="flex")
    with pytest.raises(ValueError, match="trainer_attention\\n  Input should be 'auto', 'dense', 'flex' or 'flash'"):
        GRPOSettings(trainer_attention="sparse")
    with pytest.raises(ValueError, match="compile_trainer\\n  Input should be 'auto', 'on' or 'off'"):
        GRPOSettings(compile_trainer="yes")


def test_a_wrong_number_is_found_and_the_model_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU whose compiler is wrong: layers that add a little to what they are given."""

    def wrong(forward: Any, dynamic: Any) -> Any:
        return lambda layer, hidden, *args, **options: forward(layer, hidden * 1.01, *args, **options)

    model = without_dropout(tiny_model())
    monkeypatch.setattr(layer_compiler, "_compiled", wrong)
    with pytest.raises(
        ValueError, match=r"compile_trainer='on' does not fit .*: log-probabilities differ .* by 0\.\d+"
    ):
        choose_kernels(model, "tree", "auto", "on", 512, no_autocast)
    assert not any("forward" in vars(layer) for layer in layers_of(model))

    class OnAGPU:
        type = "cuda"

    monkeypatch.setattr("headway.llm.train.kernels.device_of", lambda model: OnAGPU)
    assert choose_kernels(model, "tree", "auto", "auto", 512, no_autocast) == Kernels()
    said = capsys.readouterr().err
    by_flex, by_dense = said.splitlines()  # it was tried by flash kernels, then by FlexAttention
    assert by_flex.startswith("headway: a model of type 'llama' is trained by FlexAttention: log-probabilities differ")
    assert by_dense.startswith("headway: a model of type 'llama' is trained with dense masks: log-probabilities differ")
    assert model.config._attn_implementation == "sdpa"


def test_rounding_alone_is_no_difference() -> None:
    for kind in ("llama", "gemma2"):
        model = without_dropout(tiny_model(kind).to(torch.bfloat16))
        assert choose_kernels(model, "tree", "flex", "off", 512, no_autocast).windows is not None


# -- compiled ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("llama", "dense"),
        ("llama", "flex"),
        ("llama", "flash"),
        ("gemma2", "dense"),
        ("gemma2", "flex"),
        ("gpt2", "auto"),
    ],
)
def test_layers_that_are_exchanged_say_the_same(kind: str, attention: str) -> None:
    settings: dict[str, Any] = {"trainer_attention": attention, "kl_weight": 0.1, "temperature": 0.8}
    subject = learner(kind, compile_trainer="on", **settings)
    assert all("forward" in vars(layer) for layer in layers_of(subject._training.model))
    check_alike(subject, learner(kind, kl_weight=0.1, temperature=0.8), batch())
    assert set(subject.snapshot()) == set(learner(kind).snapshot())


def test_layers_are_told_by_transformers_and_given_back() -> None:
    model = tiny_model()
    assert compile_layers(model, few_lengths=True) == 2
    undo_compiling(model)
    assert not any("forward" in vars(layer) for layer in layers_of(model))


@pytest.mark.filterwarnings("ignore")  # the compiler's, about torch itself
@pytest.mark.parametrize("windows", [(None,), BY_FLASH])
def test_one_program_serves_all_layers_and_all_rows_of_a_length(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[int | None, ...]
) -> None:
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(forward: Any, dynamic: Any) -> Any:
        return torch.compile(forward, dynamic=dynamic, backend=count)

    monkeypatch.setattr(layer_compiler, "_compiled", cache(compiled))
    torch._dynamo.reset()
    model = Kernels(windows, is_compiled=True).apply(without_dropout(tiny_model()))

    def read(*lengths: int) -> int:
        random = np.random.default_rng(sum(lengths))
        replies = tuple(random.integers(3, 200, n) for n in lengths)
        hidden_states(model, lay_out([ReplyTree(random.integers(3, 200, 40), replies, 0)], windows=windows))
        return len(graphs)

    assert read(50, 40) == 1  # for two layers
    assert read(70) == 1
    assert read(100, 300, 90) == 2  # a longer row
    assert read(60, 10, 10) == 2
    assert read(200, 200, 90) == 2


def test_programs_are_kept_on_disk_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(layer_compiler.CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer_compiler.keep_programs()
    assert layer_compiler.os.environ[layer_compiler.CACHE] == str(tmp_path / "headway" / "compiled")
    monkeypatch.setenv(layer_compiler.CACHE, "/somewhere")
    layer_compiler.keep_programs()
    assert layer_compiler.os.environ[layer_compiler.CACHE] == "/somewhere"


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # the compiler's, about torch itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("attention", ["flex", "flash"])
def test_a_compiled_learner_learns_the_same(attention: str) -> None:
    """By the real compiler: layers, and what follows the logits."""
    subject = learner("llama", trainer_attention=attention, compile_trainer="on", microbatch_tokens=512)
    check_alike(subject, learner("llama", microbatch_tokens=512), batch())
