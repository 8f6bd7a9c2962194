"""headway plan MODEL [--gpus N] [--gpu_memory_gb G] [--nodes N] ...: what a run needs before anything is loaded.

MODEL is a folder, a config.json, an id on the model hub, smollm2, or a shape to try: 135M, 0.5B, 1.5B or 7B.

--prompt_tokens           tokens of a prompt (default 128)
--reply_tokens            tokens of a reply, the longest (default 256)
--group_size              replies per prompt (default 8)
--tickets_per_batch       prompts per update (default 32)
--gpus                    GPUs in all (default: those of this machine, or 1)
--gpu_memory_gb           memory of each, in GB of 10^9 bytes (default: those of this machine, or 80)
--nodes                   machines they are in (default 1)
--host_memory_gb          memory of each machine (default: what this one has left)
--collectors              engines (default: whatever is fastest)
--learner_ranks           ranks of the learner (default: likewise)
--evaluator               own (an engine of its own), engine (it shares one) or none (default own)
--engine                  transformers or vllm (default transformers)
--engine_rows             replies an engine generates at once (default 64)
--tensor_parallel_size    vllm: GPUs of one engine (default 1)
--gpu_memory_utilization  vllm: its share of a GPU (default 0.9 where it has GPUs of its own, else 0.3)
--microbatch_tokens       tokens per forward pass of the learner (default 8192)
--logit_chunk_tokens      tokens whose logits are in memory at once (default 1024)
--sharding                replicas, full or hybrid (default: replicas where a rank fits, else full)
--parameter_dtype         float32 or bfloat16 (default float32)
--optimizer_state         full, 8bit or host (default full)
--gradient_checkpointing  compute activations again (default false)
--lora_rank               train adapters of this rank; 0: all weights (default 0)
--reference               the learner has a reference, as with kl_weight (default false)
--critic                  none, shared or own (default none)
--leads                   the leads to compare (default 0,1,2,4)
--uneven                  how much the times of groups vary, deviation over mean (default 0.3)
--engine_rate             tokens a second of one engine, in place of what was measured on an H200
--learner_rate            reply tokens a second of one rank, likewise
--publish_gb_per_s        how fast weights reach an engine (default 2.5, as measured between two processes)
--probe                   measure both rates here, with random weights in the model's shape (minutes)
--json                    everything as JSON
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from headway.cli.options_output import say
from headway.cli.options_words import UsageError, read_options
from headway.cli.plan_report import Machine, PlanReport
from headway.cli.simulate import read_leads
from headway.core.text_naming import unknown
from headway.core.types_opaque import SettingValue
from headway.llm.memory.model_shapes import find_shape
from headway.llm.memory.planned_run import PlannedRun, line_about_pages, places_apart, places_together, tree_tokens
from headway.llm.memory.planned_run_fit_report import Place
from headway.llm.memory.remedies import Remedy, engine_changes, find_remedies, is_refused, learner_changes
from headway.llm.memory.remedies_machine import Gpu, HostMemory, gpus_here, host_memory
from headway.llm.memory.roles_generation_memory import ENGINES, Generation
from headway.llm.memory.roles_memory_items import GB
from headway.llm.memory.roles_training_memory import CRITICS, OPTIMIZER_STATES, PARAMETER_DTYPES, SHARDINGS, Training
from headway.tools.plan.division import Division, Work, best_of, divide, divisions, predict
from headway.tools.plan.division_rates import PUBLISH_BYTES_PER_S, Rates, shipped_rates

Told = Mapping[str, SettingValue]
"""What the user said of the run, under the names of the options."""
DEFAULTS: Told = {
    **{"prompt_tokens": 128, "reply_tokens": 256, "group_size": 8, "tickets_per_batch": 32},
    **{"gpus": None, "gpu_memory_gb": None, "nodes": 1, "host_memory_gb": None},
    **{"collectors": None, "learner_ranks": None, "evaluator": "own"},
    **{"engine": "transformers", "engine_rows": 64, "tensor_parallel_size": 1, "gpu_memory_utilization": None},
    **{"microbatch_tokens": 8192, "logit_chunk_tokens": 1024, "sharding": None, "parameter_dtype": "float32"},
    **{
        "optimizer_state": "full",
        "gradient_checkpointing": False,
        "lora_rank": 0,
        "reference": False,
        "critic": "none",
    },
    **{"leads": "0,1,2,4", "uneven": 0.3, "engine_rate": None, "learner_rate": None},
    **{"publish_gb_per_s": PUBLISH_BYTES_PER_S / GB, "probe": False, "json": False},
}
COUNTS = (
    *("prompt_tokens", "reply_tokens", "group_size", "tickets_per_batch", "gpus", "nodes", "collectors"),
    *("learner_ranks", "engine_rows", "tensor_parallel_size", "microbatch_tokens", "logit_chunk_tokens"),
)
AMOUNTS = ("gpu_memory_gb", "host_memory_gb", "engine_rate", "learner_rate", "publish_gb_per_s")
CHOICES: Mapping[str, Collection[str]] = {
    "evaluator": ("own", "engine", "none"),
    "engine": ENGINES,
    "sharding": SHARDINGS,
    "parameter_dtype": PARAMETER_DTYPES,
    "optimizer_state": OPTIMIZER_STATES,
    "critic": CRITICS,
}
FLAGS = ("gradient_checkpointing", "reference", "probe", "json")
DEFAULT_GPU_GB = 80.0
ENGINES_GPU = "an engine's GPU"
MOST_GPUS = 64
"""More are not offered to what does not fit."""


def command(words: list[str]) -> int:
    """The command. 0: it fits; 1: it does not."""
    if not words or words[0].startswith("-"):
        raise UsageError("plan needs a model: headway plan MODEL, a folder, a config.json, or 135M, 0.5B, 1.5B, 7B")
    told = _read(words[1:])
    model = find_shape(words[0])
    machine = _machine(told)
    plan = _planned(model, told, machine)
    rates = _rates(plan, told)
    report = _report(plan, rates, told, machine)
    if told["json"]:
        say(json.dumps(report.as_json(), indent=1))
    else:
        report.show()
    return 1 if report.is_refused else 0


def _read(words: list[str]) -> dict[str, Any]:
    options = read_options(words)
    for name, value in options.items():
        if name not in DEFAULTS:
            raise UsageError(unknown("option", name, DEFAULTS))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"--{name} must be a whole number of at least 1, received {value!r}")
        if name in AMOUNTS and not (is_number and value > 0):
            raise UsageError(f"--{name} must be a number above 0, received {value!r}")
        if name in FLAGS and not isinstance(value, bool):
            raise UsageError(f"--{name} is true or false, received {value!r}")
    told = {**DEFAULTS, **options}
    for name, allowed in CHOICES.items():
        if told[name] is not None and told[name] not in allowed:
            raise UsageError(unknown(name, str(told[name]), allowed))
    share = told["gpu_memory_utilization"]
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
        raise UsageError(f"--gpu_memory_utilization is a share of a GPU, above 0 and at most 1, received {share!r}")
    if isinstance(told["lora_rank"], bool) or not isinstance(told["lora_rank"], int):
        raise UsageError(f"--lora_rank must be a whole number, received {told['lora_rank']!r}")
    if not isinstance(told["uneven"], int | float) or told["uneven"] < 0:
        raise UsageError(f"--uneven must be a number of at least 0, received {told['uneven']!r}")
    return told


def _machine(told: Told) -> Machine:
    here = gpus_here() if told["gpus"] is None or told["gpu_memory_gb"] is None else ()
    gpus = told["gpus"] or len(here) or 1
    memory = told["gpu_memory_gb"] or (here[0].total_bytes / GB if here else DEFAULT_GPU_GB)
    known = told["gpus"] is not None and told["gpu_memory_gb"] is not None
    source = "as said" if known else here[0].name if here else "no GPU here: say --gpus and --gpu_memory_gb"
    host = host_memory() if here and not known else None  # of other machines nothing is known
    if told["host_memory_gb"] is not None:
        host = HostMemory(*[int(told["host_memory_gb"] * GB)] * 2)
    return Machine(gpus, int(memory * GB), told["nodes"], host, source)


def _planned(model: Any, told: Told, machine: Machine) -> PlannedRun:
    prompt, reply, group = told["prompt_tokens"], told["reply_tokens"], told["group_size"]
    least = prompt + reply
    if told["microbatch_tokens"] < least:
        raise UsageError(f"--microbatch_tokens {told['microbatch_tokens']} cannot hold a prompt and a reply ({least})")
    share = told["gpu_memory_utilization"] or (0.9 if machine.gpus > 1 else 0.3)
    names = ("microbatch_tokens", "logit_chunk_tokens", "parameter_dtype", "optimizer_state", "gradient_checkpointing")
    training = Training(
        row_tokens=min(told["microbatch_tokens"], tree_tokens(model, prompt, reply, group)),
        learner_ranks=told["learner_ranks"] or 1,
        ranks_per_node=machine.per_node,
        sharding=told["sharding"] or "replicas",
        has_reference=told["reference"],
        lora_rank=told["lora_rank"],
        critic=str(told["critic"]),
        **{name: told[name] for name in names},
    )
    generation = Generation(
        prompt_tokens=prompt,
        context_tokens=least,
        engine=told["engine"],
        engine_rows=told["engine_rows"],
        group_size=group,
        tensor_parallel_size=told["tensor_parallel_size"],
        gpu_memory_utilization=share,
    )
    if generation.tensor_parallel_size > machine.per_node:
        raise UsageError(
            f"--tensor_parallel_size {generation.tensor_parallel_size} is more than the {machine.per_node} GPUs of a "
            "machine: an engine is on one"
        )
    if model.heads % generation.tensor_parallel_size:
        raise UsageError(
            f"--tensor_parallel_size {generation.tensor_parallel_size} does not divide the {model.heads} heads of "
            f"{model.name}: vLLM gives each GPU as many"
        )
    return PlannedRun(model, training, generation, told["collectors"] or 1, told["evaluator"])


def _rates(plan: PlannedRun, told: Told) -> Rates:
    if told["probe"]:
        from headway.tools.plan.rate_probe import probe

        return probe(plan, prompt_tokens=told["prompt_tokens"], reply_tokens=told["reply_tokens"], say=say)
    found = shipped_rates(
        plan.model,
        engine_rows=told["engine_rows"],
        prompt_tokens=told["prompt_tokens"],
        reply_tokens=told["reply_tokens"],
        group_size=told["group_size"],
        gradient_checkpointing=told["gradient_checkpointing"],
    )
    engine, learner = told["engine_rate"], told["learner_rate"]
    source = "as said" if engine and learner else found.source
    return Rates(engine or found.engine_tokens_per_s, learner or found.learner_tokens_per_s, source)


def _report(plan: PlannedRun, rates: Rates, told: Told, machine: Machine) -> PlanReport:
    leads = read_leads(told["leads"])
    work = Work(told["tickets_per_batch"], told["group_size"], told["reply_tokens"], told["engine_rows"])
    publish = told["publish_gb_per_s"] * GB
    if machine.gpus == 1:
        places = _rooms(plan, machine)
        found = []
        if not is_refused(places):  # one GPU computes for one of them at a time: a lead hides little there
            alone = divide(
                plan,
                work,
                rates,
                engines=plan.engines,
                engine_gpus=1,
                learner_ranks=1,
                evaluator_gpus=0,
                publish=publish,
            )
            found = [predict(alone, work, [0.0], uneven=told["uneven"])]
        return PlanReport(plan, machine, places, found, _remedies(plan, places, told, machine), rates)
    for sharding in ("replicas", "full") if told["sharding"] is None else (told["sharding"],):
        plan = replace(plan, training=replace(plan.training, sharding=sharding))
        possible = [
            one
            for one in divisions(
                plan, work, rates, gpus=machine.gpus, gpu_room=machine.gpu_room, nodes=machine.nodes, publish=publish
            )
            if told["learner_ranks"] in (None, one.learner_ranks) and told["collectors"] in (None, one.engines)
        ]
        if possible:
            predictions = best_of(possible, work, leads, uneven=told["uneven"])
            plan = _with_division(plan, predictions[0].division)
            places = _rooms(plan, machine)
            return PlanReport(plan, machine, places, predictions, _remedies(plan, places, told, machine), rates)
    plan = _with_ranks(plan, told["learner_ranks"] or _most_ranks(plan, machine.gpus))
    places = _rooms(plan, machine)
    needed = _gpus_of_engines(plan) + plan.training.learner_ranks
    if needed > machine.gpus or not is_refused(places):
        needs = "; an evaluator of its own needs GPUs too: --evaluator engine" if plan.evaluator == "own" else ""
        raise UsageError(
            f"no division of {machine.gpus} GPUs has --collectors {told['collectors'] or 'any'} and --learner_ranks "
            f"{told['learner_ranks'] or 'any'} with an evaluator of {plan.evaluator!r}{needs}"
        )
    return PlanReport(plan, machine, places, [], _remedies(plan, places, told, machine), rates)


def _with_division(plan: PlannedRun, division: Division) -> PlannedRun:
    return replace(_with_ranks(plan, division.learner_ranks), engines=division.engines)


def _with_ranks(plan: PlannedRun, ranks: int) -> PlannedRun:
    return replace(plan, training=replace(plan.training, learner_ranks=ranks))


def _most_ranks(plan: PlannedRun, gpus: int) -> int:
    """Ranks that have a GPU each beside the engines, and an evaluator of its own."""
    return max(1, gpus - _gpus_of_engines(plan))


def _gpus_of_engines(plan: PlannedRun) -> int:
    assert plan.generation is not None
    return plan.generation.tensor_parallel_size * (plan.engines + (plan.evaluator == "own"))


def _rooms(plan: PlannedRun, machine: Machine) -> list[Place]:
    if machine.gpus == 1:
        return places_together(plan, [Gpu("GPU", machine.gpu_room, machine.gpu_room)], machine.host)
    return places_apart(plan, machine.gpu_room, machine.host, machine.nodes)


def _remedies(plan: PlannedRun, places: list[Place], told: Told, machine: Machine) -> list[Remedy]:
    if not is_refused(places):
        return []
    training, generation = plan.training, plan.generation
    assert generation is not None
    changes = learner_changes(
        microbatch_tokens=training.microbatch_tokens,
        least_tokens=told["prompt_tokens"] + told["reply_tokens"],
        learner_ranks=training.learner_ranks,
        max_ranks=training.learner_ranks if told["learner_ranks"] is None else _most_ranks(plan, machine.gpus),
        is_sharded=training.sharding != "replicas",
    )
    changes += engine_changes(
        engine_rows=generation.engine_rows,
        is_vllm=generation.engine == "vllm",
        share=generation.gpu_memory_utilization,
        part_sizes=_larger_engines(plan, machine),
        wants_vllm=any(place.verdict == "does not fit" and place.name.startswith(ENGINES_GPU) for place in places)
        or bool(line_about_pages(plan, places)),
        may_share=plan.evaluator == "own",
    )

    def places_for(change: Mapping[str, object]) -> list[Place]:
        changed = plan.changed(change)
        gpus = change.get("gpus", machine.gpus)
        if not isinstance(gpus, int) or gpus == 1:
            return _rooms(changed, machine)
        if told["learner_ranks"] is None:
            changed = _with_ranks(changed, _most_ranks(changed, gpus))
        if _gpus_of_engines(changed) + changed.training.learner_ranks > gpus:
            raise ValueError("there are not so many GPUs")
        if told["sharding"] is None:
            changed = changed.changed({"sharding": "full"})
        return places_apart(changed, machine.gpu_room, machine.host, machine.nodes)

    found = find_remedies(places_for, changes)
    more_gpus = _more_gpus(plan, told, machine)
    found += [remedy for remedy in find_remedies(places_for, [more_gpus]) if remedy.fits]
    if not any(remedy.fits for remedy in found):
        both = find_remedies(places_for, [*changes, more_gpus])
        found += [remedy for remedy in both if remedy.fits]
    return sorted(found, key=lambda remedy: not remedy.fits)


def _larger_engines(plan: PlannedRun, machine: Machine) -> list[int]:
    """GPUs of an engine that may be more than it has: on one machine, with as many heads on each."""
    assert plan.generation is not None
    least, most = plan.generation.tensor_parallel_size + 1, machine.per_node
    return [size for size in (2, 4, 8) if least <= size <= most and plan.model.heads % size == 0]


def _more_gpus(plan: PlannedRun, told: Mapping[str, Any], machine: Machine) -> list[dict[str, object]]:
    """Larger numbers of GPUs, as many on every machine, that engines, evaluator and a rank find room in."""
    least = _gpus_of_engines(plan) + (told["learner_ranks"] or 1)
    powers = (machine.nodes * 2**power for power in range(1, 11))
    return [{"gpus": count} for count in powers if machine.gpus < count <= MOST_GPUS and count >= least]
