"""`headway export`: the trained model as a folder that others load, bit for bit what the run ended with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="needs headway[llm]")
pytest.importorskip("peft", reason="needs headway[llm]")

from command_runs import refused, run_of  # noqa: E402
from grpo_runs import make_material, tiny_values  # noqa: E402
from peft import PeftModel  # noqa: E402
from system_limits import file_size_limit  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from headway.cli import main  # noqa: E402
from headway.coordinator.checkpoint import CheckpointStore  # noqa: E402
from headway.coordinator.checkpoint_best_weights import kept_weights  # noqa: E402
from headway.llm.model.loading_models import ModelError  # noqa: E402
from headway.llm.model.loading_saving import save_model  # noqa: E402
from headway.runs.fingerprint import fingerprint  # noqa: E402
from headway.runs.folder import RunFolder  # noqa: E402
from headway.runs.recipes_package import EXPORTED, RECIPES, load_recipe  # noqa: E402
from headway.runs.recipes_run_export import export  # noqa: E402
from headway.testing.tiny_models import tiny_model, tiny_tokenizer  # noqa: E402

pytestmark = pytest.mark.timeout(120)
Output = pytest.CaptureFixture[str]
TOKENS = torch.arange(3, 60).reshape(3, 19)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def full(material: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """All weights; every version has a checkpoint and a score."""
    values = tiny_values(material, updates=3, evaluate_every=1, eval_prompts=2, save_every=1, keep_checkpoints=4)
    return run_of(tmp_path_factory.mktemp("full"), "grpo", **values)


@pytest.fixture(scope="module")
def lora(material: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    values = tiny_values(material, updates=2, lora_rank=2, lora_alpha=8.0, runtime="threads")
    return run_of(tmp_path_factory.mktemp("lora"), "grpo", **values)


def test_a_run_on_relative_paths_is_used_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    make_material(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = run_of(Path("."), "grpo", **tiny_values(Path(), updates=1, evaluate_every=1, eval_prompts=2))
    assert run.config.is_file() and Path(run).name == Path(str(run)).name
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    there = str(tmp_path / run)
    assert main(["evaluate", there]) == 0
    assert main(["export", there, "--to", "exported"]) == 0
    assert main(["samples", there]) == 0
    assert main(["resume", there, "--updates", "2", "--quiet", "--report", "false"]) == 0
    assert main(["run", "--replay", there]) == 0
    assert "the same bits as recorded" in capsys.readouterr().out


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def with_weights(material: Path, weights: Any) -> Any:
    """The model the run began with, and these weights in it."""
    model = AutoModelForCausalLM.from_pretrained(material / "model")
    unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
    assert not unexpected
    return model


# -- what is loaded again ---------------------------------------------------------------------------


def test_the_model_holds_the_bits_the_run_ended_with(full: RunFolder, material: Path, tmp_path: Path) -> None:
    done = export(full, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(done.folder)
    trained = {name: p.detach() for name, p in model.named_parameters() if name in done.kept.weights}
    assert fingerprint(trained) == full.recorded_fingerprint()
    assert model.dtype == torch.float32
    assert torch.equal(logits(model), logits(with_weights(material, done.kept.weights)))
    assert not torch.equal(logits(model), logits(AutoModelForCausalLM.from_pretrained(material / "model")))


def test_adapters_are_folded_in(lora: RunFolder, material: Path, tmp_path: Path) -> None:
    done = export(lora, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(done.folder)
    trained = {name: p.detach() for name, p in model.named_parameters() if name in done.kept.weights}
    assert fingerprint(trained) == lora.recorded_fingerprint()
    assert not any("lora" in name for name in model.state_dict())
    assert torch.equal(logits(model), logits(with_weights(material, done.kept.weights)))


def test_adapters_by_themselves_are_read_by_peft(lora: RunFolder, material: Path, tmp_path: Path) -> None:
    merged = AutoModelForCausalLM.from_pretrained(export(lora, tmp_path / "merged").folder)
    done = export(lora, tmp_path / "adapters", adapters=True)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(material / "model"), str(done.folder))
    assert done.kept.state is not None
    for name, trained in done.kept.state.learner["weights"].items():
        assert torch.equal(model.get_parameter(f"base_model.model.{name}"), trained), name
    assert torch.allclose(logits(model), logits(merged), atol=1e-5)
    assert not torch.allclose(
        logits(model), logits(AutoModelForCausalLM.from_pretrained(material / "model")), atol=1e-5
    )
    config = json.loads((done.folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 8.0, "CAUSAL_LM")
    assert config["base_model_name_or_path"] == str(material / "model")
    folded = model.merge_and_unload()
    assert torch.allclose(logits(folded), logits(merged), atol=1e-5)


def test_best_and_versions_are_those_that_were_kept(full: RunFolder, tmp_path: Path) -> None:
    for which in ("best", 1, 2, "last"):
        done = export(full, tmp_path / str(which), checkpoint=which)
        kept = kept_weights(full.checkpoints, which)
        assert (done.kept.version, fingerprint(done.kept.weights)) == (kept.version, fingerprint(kept.weights))
        model = AutoModelForCausalLM.from_pretrained(done.folder)
        own = dict(model.named_parameters())
        assert all(torch.equal(own[name], tensor) for name, tensor in kept.weights.items())


def test_the_model_has_the_precision_of_the_published_weights(tmp_path: Path) -> None:
    """On a GPU a run publishes bfloat16."""
    trained = {name: p.detach().bfloat16() for name, p in tiny_model(seed=1).named_parameters() if "mlp" in name}
    save_model(tiny_model(seed=0), trained, tiny_tokenizer(), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    before, own = dict(tiny_model(seed=0).named_parameters()), dict(model.named_parameters())
    for name, parameter in own.items():
        assert torch.equal(parameter, trained.get(name, before[name].bfloat16())), name


def test_tokenizer_and_generation_config_come_along(full: RunFolder, material: Path, tmp_path: Path) -> None:
    done = export(full, tmp_path / "model")
    asked: Any = [{"role": "user", "content": "Count to 3."}]
    before, after = (AutoTokenizer.from_pretrained(place) for place in (material / "model", done.folder))
    assert after.apply_chat_template(asked) == before.apply_chat_template(asked)
    assert json.loads((done.folder / "generation_config.json").read_text())["eos_token_id"] == 0


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    other = {"model.embed_tokens.weight": torch.zeros(2, 2)}
    with pytest.raises(ModelError, match=r"model.embed_tokens.weight \(2, 2\), which is of shape \(\d+, 32\) in the"):
        save_model(tiny_model(), other, tiny_tokenizer(), tmp_path)
    with pytest.raises(ModelError, match=r"the run has trained head \(2,\), which is not there in the model it began"):
        save_model(tiny_model(), {"head": torch.zeros(2)}, tiny_tokenizer(), tmp_path)


# -- the page ---------------------------------------------------------------------------------------


def test_the_page_says_where_the_weights_come_from(full: RunFolder, material: Path, tmp_path: Path) -> None:
    done = export(full, tmp_path / "model", checkpoint="best")
    _, head, body = (done.folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    assert f"# {full.path.name}, version {done.kept.version}\n" in body
    assert "\nTrained with the recipe grpo of Headway.\n" in body
    assert f"| score | {done.kept.score:.6g} |" in body
    assert f"| model it began with | {material / 'model'} |" in body
    settings = yaml.safe_load(body.partition("```yaml\n")[2].partition("```")[0])
    assert (settings["group_size"], settings["updates"], settings["learning_rate"]) == (4, 3, 1e-2)
    assert "clip_low" not in settings  # as the recipe has it
    usage = body.partition("```python\n")[2].partition("```")[0]
    space: dict[str, Any] = {}
    exec(usage.replace("FOLDER", str(done.folder)), space)
    assert fingerprint(space["model"].state_dict())


def test_the_page_of_adapters_loads_them(lora: RunFolder, tmp_path: Path) -> None:
    done = export(lora, tmp_path / "adapters", adapters=True)
    text = (done.folder / "README.md").read_text()
    assert "| score | not evaluated |" in text
    space: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0].replace("FOLDER", str(done.folder)), space)
    assert isinstance(space["model"], PeftModel)


# -- the command ------------------------------------------------------------------------------------


def test_the_command_names_version_and_fingerprint(full: RunFolder, tmp_path: Path, capsys: Output) -> None:
    to = tmp_path / "new" / "model"
    capsys.readouterr()
    assert main(["export", str(full.path), "--to", str(to)]) == 0
    assert capsys.readouterr().out == f"version 3, weights {full.recorded_fingerprint()}: {to}\n"
    assert sorted(path.name for path in to.parent.iterdir()) == ["model"]


def test_an_empty_folder_is_taken_and_no_other(full: RunFolder, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "empty").mkdir()
    export(full, tmp_path / "empty")
    assert refused(capsys, "export", str(full.path), "--to", str(tmp_path / "empty")) == (
        f"{tmp_path / 'empty'} exists and is not empty: choose another folder"
    )
    (tmp_path / "file").write_text("mine")
    line = refused(capsys, "export", str(full.path), "--to", str(tmp_path / "file"))
    assert line == f"{tmp_path / 'file'} exists and is no folder: choose another folder"
    line = refused(capsys, "export", str(full.path), "--to", str(tmp_path / "file" / "inside"))
    assert line.startswith(f"{tmp_path / 'file' / 'inside'} cannot be written: ")


@pytest.mark.parametrize("num_bytes", [100, 4_000])  # too few for the settings, too few for the weights
def test_a_model_that_does_not_fit_is_one_line_and_leaves_nothing_behind(
    full: RunFolder, tmp_path: Path, capsys: Output, num_bytes: int
) -> None:
    capsys.readouterr()
    with file_size_limit(num_bytes):
        assert main(["export", str(full.path), "--to", str(tmp_path / "model")]) == 1
    line = capsys.readouterr().err
    limit = f"(`ulimit -f` allows {num_bytes} bytes in a file)"
    assert line == f"headway: {tmp_path / 'model'}: File too large {limit}\n"
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_nothing_behind(full: RunFolder, tmp_path: Path, capsys: Output) -> None:
    line = refused(capsys, "export", str(full.path), "--to", str(tmp_path / "model"), "--adapters", "true")
    assert line == "adapters=true needs a run with lora_rank > 0: this one trained all weights"
    assert list(tmp_path.iterdir()) == []


def test_adapters_that_are_kept_only_folded_in_are_refused(material: Path, tmp_path: Path, capsys: Output) -> None:
    values = tiny_values(material, updates=4, lora_rank=2, evaluate_every=1, eval_prompts=2, learning_rate=1e-6)
    folder = run_of(tmp_path, "grpo", **values)  # it hardly learns: the first of equal scores is the best
    assert kept_weights(folder.checkpoints, "best").version == 1
    words = ["export", str(folder.path), "--to", str(tmp_path / "best"), "--checkpoint", "best"]
    line = refused(capsys, *words, "--adapters", "true")
    assert line == "version 1 is kept with its adapters folded in: export it without adapters=true"
    assert main(words) == 0


def test_adapters_newer_than_their_version_are_refused(material: Path, tmp_path: Path, capsys: Output) -> None:
    folder = run_of(tmp_path, "grpo", **tiny_values(material, updates=3, lora_rank=2, publish_every=2))
    words = ["export", str(folder.path), "--adapters", "true", "--to"]
    assert main([*words, str(tmp_path / "ended")]) == 0, "a run ends with the weights it has, as a version"
    store = CheckpointStore(folder.checkpoints)
    store.save(replace(store.load(), last=None))  # as of a run that was interrupted there
    line = refused(capsys, *words, str(tmp_path / "last"))
    assert line == "the adapters of this checkpoint are newer than version 1, within publish_every"


def test_what_cannot_be_exported_is_said_in_one_line(full: RunFolder, tmp_path: Path, capsys: Output) -> None:
    run, to, kept = str(full.path), str(tmp_path / "model"), full.checkpoints
    for words, line in {
        (): "export needs the folder of a run: headway export RUN",
        (run,): "export needs a folder to write to: headway export RUN --to FOLDER",
        (run, "--to"): "export needs a folder to write to: headway export RUN --to FOLDER",
        (str(tmp_path / "absent"), "--to", to): f"no run folder at {tmp_path / 'absent'}",
        (run, "--to", to, "--checkpoint", "9"): f"no checkpoint of version 9 in {kept}; there: 1, 2, 3, ",
        (run, "--to", to, "--checkpoint", "first"): "a checkpoint is called best, last or by its version, received 'f",
        (run, "--to", to, "--adapter", "true"): "unknown option 'adapter'; did you mean 'adapters'? allowed: adapters,",
        (run, "--to", to, "--adapters", "3"): "adapters is true or false, received 3",
    }.items():
        assert refused(capsys, "export", *words).startswith(line)
    assert not (tmp_path / "model").exists()


def test_runs_of_other_recipes_are_refused_by_name(tmp_path: Path, capsys: Output) -> None:
    at_once = {"collect_ms": 0, "train_ms": 0, "evaluate_ms": 0}
    folder = run_of(tmp_path, "functions", updates=2, **at_once)
    line = refused(capsys, "export", str(folder.path), "--to", str(tmp_path / "model"))
    assert line == f"{folder.path} is a run of 'functions'; only runs of {', '.join(EXPORTED)} can be exported " + (
        "to a folder; a policy becomes a file that ends in .onnx, .pt2 or .pt"
    )


def test_the_recipes_that_can_are_those_that_are_named() -> None:
    assert tuple(name for name in sorted(RECIPES) if load_recipe(name).export is not None) == EXPORTED
