"""A learner says of a reply what the model itself says of it, whatever the family; or it says that it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")

from headway.core.types import Batch, Rollout  # noqa: E402
from headway.llm.rollouts_group import Group  # noqa: E402
from headway.llm.train.grpo_learner_learner import GRPOLearner, GRPOSettings  # noqa: E402
from headway.llm.train.heads import LogitTransform, logit_transform_of  # noqa: E402
from headway.llm.train.kernels_layouts import choose_layout  # noqa: E402
from headway.llm.train.without_dropout import without_dropout  # noqa: E402
from headway.testing.tiny_models import KINDS, PLAIN_KINDS, ROWS_KINDS, WINDOW, tiny_model  # noqa: E402

CASES = [(kind, layout) for kind in KINDS for layout in ("tree", "rows") if layout == "rows" or kind not in ROWS_KINDS]

pytestmark = pytest.mark.usefixtures("one_thread")


def own_log_probs(model: Any, prompt: np.ndarray, reply: np.ndarray) -> np.ndarray:
    """By the model's own forward pass over the one sequence."""
    whole = torch.tensor([[*prompt.tolist(), *reply.tolist()]])
    with torch.no_grad():
        logs = torch.log_softmax(model(whole).logits[0].float(), -1)[len(prompt) - 1 : -1]
    return logs.gather(1, whole[0, len(prompt) :, None])[:, 0].numpy()


def batch(model: Any) -> Batch:
    """Replies longer than the window, as an engine that agrees with the model would have made them."""
    random = np.random.default_rng(0)
    groups = []
    for prompt_tokens, lengths in ((WINDOW + 3, [WINDOW + 5, 3, 1]), (4, [2, 2 * WINDOW])):
        prompt = random.integers(3, 200, prompt_tokens).astype(np.int32)
        parts = [random.integers(3, 200, length).astype(np.int32) for length in lengths]
        groups.append(
            Rollout(
                Group(
                    prompt=prompt,
                    tokens=np.concatenate(parts),
                    lengths=np.array(lengths),
                    log_probs=np.concatenate([own_log_probs(model, prompt, part) for part in parts]),
                    versions=np.zeros(sum(lengths), np.int32),
                    rewards=random.random(len(lengths)).astype(np.float32),
                ),
                steps=sum(lengths),
            )
        )
    return Batch(0, tuple(groups))


def learner(kind: str, **settings: Any) -> GRPOLearner:
    return GRPOLearner(
        lambda: tiny_model(kind),
        GRPOSettings(learning_rate=1e-3, **settings),
        load_reference=lambda: tiny_model(kind),
        load_critic=lambda: tiny_model(kind),
    )


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_log_probs_are_the_models_own(kind: str, layout: str) -> None:
    found = learner(kind, layout=layout, microbatch_tokens=80).learn(batch(tiny_model(kind))).metrics
    assert found["mismatch_max"] < 1e-5
    assert found["grad_norm"] > 0


@pytest.mark.parametrize("kind", ["gemma2", "cohere", "granite", "mpt"])
def test_a_reference_is_read_as_the_policy_is(kind: str) -> None:
    found = learner(kind, kl_weight=0.1).learn(batch(tiny_model(kind))).metrics
    assert abs(found["reference_kl"]) < 1e-6


@pytest.mark.parametrize("kind", ["gemma2", "mamba"])
def test_a_critic_of_its_own_reads_such_models_too(kind: str) -> None:
    critic: dict[str, Any] = {"critic": "own", "critic_warmup_updates": 1}
    subject, one = learner(kind, estimator="gae", **critic), batch(tiny_model(kind))
    assert subject.learn(one).metrics["critic_grad_norm"] > 0


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_both_layouts_learn_the_same(kind: str) -> None:
    one, after = batch(tiny_model(kind)), []
    for layout in ("tree", "rows"):
        subject = learner(kind, layout=layout, adam_eps=1e-4)
        subject.learn(one)
        after.append({name: tensor.clone() for name, tensor in subject.snapshot().items()})
    for name, tensor in after[0].items():
        torch.testing.assert_close(tensor, after[1][name], atol=2e-5, rtol=0)


# -- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_chosen_where_they_fit_and_rows_where_not_with_a_line(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = without_dropout(tiny_model(kind))
    before = torch.get_rng_state()
    expected = "rows" if kind in ROWS_KINDS else "tree"
    assert choose_layout(model) == expected
    assert torch.equal(torch.get_rng_state(), before)
    said = capsys.readouterr().err
    assert (f"a model of type {kind!r} is trained in rows, not in trees: " in said) == (expected == "rows")
    assert choose_layout(model, "rows") == "rows"


def test_a_tree_that_does_not_fit_is_refused_with_the_difference() -> None:
    with pytest.raises(ValueError, match=r"layout='tree' does not fit a model of type 'mpt': log-prob.* by 0\.\d+ \("):
        learner("mpt", layout="tree")
    with pytest.raises(ValueError, match="layout\\n  Input should be 'auto', 'tree' or 'rows'"):
        GRPOSettings(layout="trees")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_rounding_alone_is_no_difference(dtype: Any) -> None:
    for kind in ("llama", "gemma2"):
        assert choose_layout(without_dropout(tiny_model(kind).to(dtype))) == "tree"


def test_a_window_too_wide_for_the_check_is_checked_and_left_as_it_was() -> None:
    model = without_dropout(tiny_model("gemma2"))
    model.config.sliding_window = 4096
    assert choose_layout(model) == "tree"
    assert model.config.sliding_window == 4096
    model = without_dropout(tiny_model("mistral"))
    model.config.layer_types = ["full_attention"] * 2  # trees believe it, the model goes by its window
    assert choose_layout(model) == "rows"


def test_a_head_that_does_more_than_is_known_cannot_be_trained() -> None:
    model = without_dropout(tiny_model("gemma2"))
    model.config.model_type, model.config.logit_scale = "gemma9", 0.5
    with pytest.raises(ValueError, match=r"^a model of type 'gemma9' cannot be trained: log-probabilities differ"):
        choose_layout(model)


def test_what_the_families_do_to_their_logits_is_found_in_their_configs() -> None:
    found = {
        kind: logit_transform_of(tiny_model(kind))
        for kind in (*PLAIN_KINDS, "gemma2", "gemma3_text", "cohere", "granite")
    }
    assert all(found[kind] == LogitTransform() for kind in (*PLAIN_KINDS, "gemma3_text"))
    assert found["gemma2"] == LogitTransform(cap=2.0)
    assert found["cohere"] == LogitTransform(scale=0.0625)
    assert found["granite"] == LogitTransform(scale=0.25)
