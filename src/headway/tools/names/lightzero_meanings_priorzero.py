"""What the configuration of PriorZero has besides that of LightZero, and what each name in it is here.

    env: {env_id: zork1.z5, max_steps: 500}                        -->   env: zork1.z5, max_episode_steps: 500
    policy: {llm_policy_cfg: {pretrain_llm_path: Qwen/...}}        -->   model: Qwen/...
    policy: {llm_policy_cfg: {enable_rft: true}}                   -->   prior: learned, prior_loss: ppo
    policy: {llm_policy_cfg: {use_cot: true}}                      -->   refused: actions are scored as they are

Everything else of its file is LightZero's (`lightzero.py`); `env.max_steps` is verl-agent's too (`verl_agent.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from headway.tools.names import lightzero_meanings as by
from headway.tools.names.lightzero_meanings import MODEL, WORLD
from headway.tools.names.rows import Meaning, Theirs, by_path, only, row

LLM = "policy.llm_policy_cfg"
ENABLE, SFT, RFT = f"{LLM}.enable_llm", f"{LLM}.enable_sft", f"{LLM}.enable_rft"
TRAINING = (ENABLE, SFT, RFT)
LORA, LORA_RANK = f"{LLM}.use_lora", f"{LLM}.lora_r"


def _training(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    """Three switches say one thing: whether there is a prior, and how it learns."""
    if not theirs.get(ENABLE, True):
        return {"prior": "none"}
    imitates, reinforces = bool(theirs.get(SFT, False)), bool(theirs.get(RFT, False))
    if not imitates and not reinforces:
        return {"prior": "frozen"} if SFT in theirs and RFT in theirs else "prior says whether there is one"
    loss = "imitation_then_ppo" if imitates and reinforces else "imitation" if imitates else "ppo"
    return {"prior": "learned", "prior_loss": loss}


def _adapters(value: object, theirs: Theirs, fields: Collection[str]) -> Meaning:
    if not theirs.get(LORA, True):
        return {"lora_rank": 0}
    return {"lora_rank": theirs[LORA_RANK]} if LORA_RANK in theirs else "lora_rank says how large adapters are"


PATHS = by_path(
    row(by.GAME_PATH, "env (the file itself)", "roms/zork1.z5", by.env, by.ENV_TYPE, by.ENV_ID, by.ENV_NAME),
    row("env.max_action_num", "slots", 16),
    row("policy.wm_weight", "prior_weight (1 - it)", 0.5, by.flat("wm_weight")),
    row(ENABLE, "prior (none when off)", False, _training, *TRAINING),
    row(SFT, "prior, prior_loss (imitation)", True, _training, *TRAINING),
    row(RFT, "prior, prior_loss (ppo)", True, _training, *TRAINING),
    row(f"{LLM}.wm_weight", "prior_weight (1 - it)", 0.5, by.flat("wm_weight")),
    row(f"{LLM}.pretrain_llm_path", "model", "smollm2"),
    row(f"{LLM}.history_length", "history_steps", 5),
    row(f"{LLM}.prompt_max_len", "context_tokens", 2048),
    row(f"{LLM}.learning_rate", "prior_learning_rate", 1e-5),
    row(f"{LLM}.llm_learning_rate", "prior_learning_rate", 1e-6),
    row(f"{LLM}.train_batch_size", "prior_batch_size", 128),
    row(f"{LLM}.llm_learn_num_samples", "prior_max_states", 256),
    row(f"{LLM}.rft_clip_epsilon", "prior_clip", 0.2),
    row(f"{LLM}.rft_kl_coef", "prior_kl", 0.01),
    row(LORA, "lora_rank (0 when off)", False, _adapters, LORA_RANK),
    row(LORA_RANK, "lora_rank", 8, _adapters, LORA),
    row(f"{LLM}.lora_alpha", "lora_alpha", 16.0),
    row(f"{LLM}.use_cot", "(only False)", False, only(False, why="actions are scored as they are, without a thought")),
    row(
        f"{LLM}.sft_target",
        "(only mcts_policy)",
        "mcts_policy",
        only("mcts_policy", why="the prior imitates the visits of the search"),
    ),
    row(
        f"{LLM}.rft_loss_type",
        "(only ppo-simple-adv)",
        "ppo-simple-adv",
        only("ppo-simple-adv", why="an action is worth its n-step target less the root's value (prior_loss=ppo)"),
    ),
)

_NOTHING = "nothing is generated: given actions are scored"
_ONE_AFTER_ANOTHER = "imitation and ppo come one after the other (prior_loss, imitation_updates)"
_MICROBATCHES = "microbatch_tokens says how much is read at once; what is learned is the same"
_HASHED = "words are hashed: no tokenizer and no encoder is loaded"
_VLLM = "engine says what scores; with engine=vllm, vllm_options is handed to it"
_HERE = "a story game says what it needs"
_LOGS = "every event and every metric is in the run's folder"
_ONE_TASK = "a run has one game, and a dense model of it"

WITHOUT_EFFECT: dict[str, str] = {
    "replay_buffer.*": "replay_capacity and batch_size say it",
    "evaluator.*": "an evaluation plays whole episodes in every way to play",
    "env.tokenizer_path": _HASHED,
    "env.max_seq_len": "text_words says how much of a text is seen",
    "env.action_space_size": _HERE,
    "env.env_type": _HERE,
    "env.for_unizero": _HERE,
    "env.use_cache": "valid actions are remembered by the state's own key",
    "env.cache_size": "valid actions are remembered by the state's own key",
    "env.save_replay": _LOGS,
    "env.save_replay_path": _LOGS,
    "env.collect_policy_mode": "collect_mode says who acts",
    "policy._action_map.*": "actions are texts, not numbers",
    "policy._action_inv_map.*": "actions are texts, not numbers",
    "policy.profile_cfg.*": _LOGS,
    f"{LLM}.generate_max_len": _NOTHING,
    f"{LLM}.temperature": "prior_temperature softens the prior; nothing is drawn",
    f"{LLM}.top_p": _NOTHING,
    f"{LLM}.llm_loss_weight": _ONE_AFTER_ANOTHER,
    f"{LLM}.sft_loss_weight": _ONE_AFTER_ANOTHER,
    f"{LLM}.rft_loss_weight": _ONE_AFTER_ANOTHER,
    f"{LLM}.weight_decay": "the prior's weights do not decay",
    f"{LLM}.llm_weight_decay": "the prior's weights do not decay",
    f"{LLM}.lora_dropout": "there is no dropout",
    f"{LLM}.micro_batch_size": _MICROBATCHES,
    f"{LLM}.gradient_accumulation_steps": _MICROBATCHES,
    f"{LLM}.zero_stage": "the prior's learner is one process",
    f"{LLM}.prompt_log_interval": _LOGS,
    f"{LLM}.vllm_tensor_parallel_size": _VLLM,
    f"{LLM}.gpu_memory_utilization": _VLLM,
    f"{MODEL}.encoder_option": _HASHED,
    f"{MODEL}.encoder_url": _HASHED,
    f"{WORLD}.task_embed_option": _ONE_TASK,
    f"{WORLD}.use_task_embed": _ONE_TASK,
    f"{WORLD}.use_normal_head": _ONE_TASK,
    f"{WORLD}.use_softmoe_head": _ONE_TASK,
    f"{WORLD}.use_moe_head": _ONE_TASK,
    f"{WORLD}.num_experts_in_moe_head": _ONE_TASK,
    f"{WORLD}.n_shared_experts": _ONE_TASK,
    f"{WORLD}.num_experts_per_tok": _ONE_TASK,
    f"{WORLD}.num_unroll_steps": "policy.num_unroll_steps says it",
    f"{WORLD}.analysis_dormant_ratio_weight_rank": _LOGS,
}
"""Accepted, said to have no effect when the run begins, and why. `.*` is everything below."""
