"""headway export RUN --to FOLDER|FILE [--checkpoint best|last|VERSION] [--adapters true]

The trained language model of a run as a folder that transformers and vLLM load: the newest checkpoint, unless
another is named. Adapters are folded in, or with --adapters true written by themselves, for peft. A trained policy
becomes a file: FILE.onnx, FILE.pt2 (torch.export) or FILE.pt (TorchScript) takes observations and gives actions.
Checkpoints are pickles: export only runs you trust.
"""

from __future__ import annotations

from pathlib import Path

from headway.cli.options_output import say
from headway.cli.options_words import UsageError, one_run, read_options
from headway.coordinator.checkpoint_best_weights import LAST
from headway.core.text_naming import unknown
from headway.core.types_opaque import JsonObject
from headway.runs.fingerprint import fingerprint
from headway.runs.folder import RunFolder
from headway.runs.recipes_loading import load
from headway.runs.recipes_run_export import export

NETWORK_FILES = (".onnx", ".pt2", ".pt")


def command(words: list[str]) -> int:
    """The command."""
    folder, options = RunFolder.existing(one_run("export", words[:1])), read_options(words[1:])
    to = options.pop("to", True)
    if to is True:
        raise UsageError("export needs a folder to write to: headway export RUN --to FOLDER")
    if Path(str(to)).suffix in NETWORK_FILES:
        return _export_policy(folder, str(to), options)
    done = export(folder, Path(str(to)), **options)
    kept = done.kept
    say(f"version {kept.version}, weights {fingerprint(kept.weights)}: {done.folder}")
    return 0


def _export_policy(folder: RunFolder, to: str, options: JsonObject) -> int:
    which = options.pop("checkpoint", LAST)
    for name in options:
        raise UsageError(unknown("option", name, ("to", "checkpoint")))
    policy = load(folder, which)
    if not hasattr(policy, "features"):
        raise ValueError(f"{folder.path} trained a language model: it becomes a folder, received --to {to}")
    policy.export(to)
    say(f"{policy.facts}: {to}")
    return 0
