"""What `headway plan` found, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict

from headway.cli.options_output import print_table, say
from headway.cli.options_words import UsageError
from headway.core.types_opaque import JsonObject
from headway.llm.memory.planned_run import PlannedRun, line_about_pages
from headway.llm.memory.planned_run_fit_report import Place, table_rows
from headway.llm.memory.remedies import Remedy, is_refused
from headway.llm.memory.remedies_machine import HostMemory
from headway.llm.memory.roles_memory_items import in_gb
from headway.tools.plan.division import Prediction
from headway.tools.plan.division_rates import Rates


class Machine:
    """The GPUs that are planned with, each of `gpu_room` bytes, in `nodes` machines with a memory of `host`."""

    def __init__(self, gpus: int, gpu_room: int, nodes: int, host: HostMemory | None, source: str) -> None:
        if gpus % nodes:
            raise UsageError(f"--gpus {gpus} cannot be in --nodes {nodes} machines with as many each")
        self.gpus, self.gpu_room, self.nodes, self.host, self.source = gpus, gpu_room, nodes, host, source

    @property
    def per_node(self) -> int:
        return self.gpus // self.nodes

    def __str__(self) -> str:
        each = f"{self.gpus} GPU{'s' * (self.gpus > 1)} of {in_gb(self.gpu_room)}"
        return f"{each} in {self.nodes} machine{'s' * (self.nodes > 1)} ({self.source})"


class PlanReport:
    """What was found: places of the run that is advised (or asked for), predictions, and what would help."""

    def __init__(
        self,
        plan: PlannedRun,
        machine: Machine,
        places: list[Place],
        predictions: list[Prediction],
        remedies: list[Remedy],
        rates: Rates,
    ) -> None:
        self.plan, self.machine, self.places = plan, machine, places
        self.predictions, self.remedies, self.rates = predictions, remedies, rates

    @property
    def is_refused(self) -> bool:
        return is_refused(self.places)

    def show(self) -> None:
        model = self.plan.model
        active = f" ({model.parameters_used_by(1):,} active)" if model.used_experts < 1 else ""
        say(f"{model.name}: {model.num_parameters:,} parameters{active} in {model.layers} layers; {self.machine}")
        print_table(["place", "role", "what", "when", "bytes", ""], table_rows(self.places))
        if self.is_refused:
            lacking = [place for place in self.places if place.verdict == "does not fit"]
            for place in lacking:
                say(f"does not fit: {place.in_a_line()}")
            if why := line_about_pages(self.plan, lacking):
                say(why)
            say("what would help:" if self.remedies else "nothing that can be changed here would help")
            for remedy in self.remedies:
                say(f"  {remedy}")
            return
        self._show_predictions()

    def _show_predictions(self) -> None:
        rows = [_division_row(one) for one in self.predictions]
        if not rows:
            return
        print_table(
            ["engines", "ranks", "evaluator", "a group", "an update", "lead", "updates/s", "idle: learner, engines"],
            rows,
        )
        best = self.predictions[0]
        division, outcome = best.division, best.best
        training, generation = self.plan.training, self.plan.generation
        assert generation is not None
        ranks, lead = division.learner_ranks, outcome.lead
        words = f"--runtime ray --collectors {division.engines} --learner_ranks {ranks} --max_lead {lead:g}"
        if generation.tensor_parallel_size > 1:
            words += f" --engine_gpus {generation.tensor_parallel_size}"
        if training.sharding != "replicas":
            words += f" --sharding {training.sharding}"
        if training.sharding == "hybrid":
            words += f" --shard_ranks {training.shards}"
        if self.plan.evaluator == "engine":
            words += " --evaluator engine"
        if self.machine.gpus == 1:
            say("on one GPU engine and learner take turns: --max_lead 0 was the fastest where that was measured")
        else:
            say(f"advised: {words}")
        say(
            f"rates: {self.rates.engine_tokens_per_s:,.0f} tokens/s of an engine, "
            f"{self.rates.learner_tokens_per_s:,.0f} of a rank ({self.rates.source})"
        )
        if self.machine.gpus > 1:
            say("several GPUs are by calculation: nothing was measured with more than one")

    def as_json(self) -> JsonObject:
        model = self.plan.model
        return {
            "model": {"name": model.name, "parameters": model.num_parameters, "layers": model.layers},
            "machine": {"gpus": self.machine.gpus, "gpu_bytes": self.machine.gpu_room, "nodes": self.machine.nodes},
            "training": asdict(self.plan.training),
            "fits": not self.is_refused,
            "places": [_place_json(place) for place in self.places],
            "remedies": [{**asdict(remedy), "settings": dict(remedy.settings)} for remedy in self.remedies],
            "rates": asdict(self.rates),
            "divisions": [
                {
                    **asdict(one.division),
                    "lead": one.best.lead,
                    "updates_per_s": one.best.updates_per_s,
                    "by_lead": {f"{outcome.lead:g}": outcome.updates_per_s for outcome in one.outcomes},
                }
                for one in self.predictions
            ],
        }


def _place_json(place: Place) -> JsonObject:
    tenants = [
        {
            "role": tenant.memory.role,
            "count": tenant.count,
            "peak_bytes": tenant.peak_bytes,
            "held": {item.name: item.num_bytes for item in tenant.memory.held},
            "moments": {
                moment: {item.name: item.num_bytes for item in items}
                for moment, items in tenant.memory.moments.items()
                if items
            },
        }
        for tenant in place.tenants
    ]
    return {
        "place": place.name,
        "peak_bytes": place.peak_bytes,
        "room_bytes": place.room_bytes,
        "verdict": place.verdict,
        "roles": tenants,
    }


def _division_row(one: Prediction) -> list[str]:
    division, best = one.division, one.best
    size = f" of {division.engine_gpus} GPUs" if division.engine_gpus > 1 else ""
    return [
        f"{division.engines}{size}",
        str(division.learner_ranks),
        f"{division.evaluator_gpus} GPU{'s' * (division.evaluator_gpus > 1)}" if division.evaluator_gpus else "shared",
        f"{division.group_s:.2f} s",
        f"{division.update_s:.2f} s",
        f"{best.lead:g}",
        f"{best.updates_per_s:.4g}",
        f"{100 * best.learner_idle:.0f}%, {100 * best.collectors_idle:.0f}%",
    ]
