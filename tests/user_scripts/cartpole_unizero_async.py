"""As users of LightZero's asynchronous entry have it: a configuration of CartPole, and the call. One import is ours."""


class EasyDict(dict):
    def __init__(self, values):
        super().__init__({name: EasyDict(one) if isinstance(one, dict) else one for name, one in values.items()})

    __getattr__ = dict.__getitem__


collectors = evaluators = 3
max_env_step = 90
world = dict(
    final_norm_option_in_obs_head="LayerNorm",
    final_norm_option_in_encoder="LayerNorm",
    predict_latent_loss_type="mse",
    max_blocks=10,
    max_tokens=20,
    context_length=8,
    context_length_for_recurrent=8,
    device="cpu",
    action_space_size=2,
    num_layers=2,
    num_heads=2,
    embed_dim=64,
    env_num=3,
    collector_env_num=collectors,
    evaluator_env_num=evaluators,
    obs_type="vector",
    norm_type="BN",
    rotary_emb=False,
)
model = dict(
    observation_shape=4,
    action_space_size=2,
    self_supervised_learning_loss=True,
    discrete_action_encoding_type="one_hot",
    norm_type="BN",
    model_type="mlp",
    world_model_cfg=world,
)
policy = dict(
    learn=dict(learner=dict(hook=dict(save_ckpt_after_iter=100))),
    model=model,
    use_wandb=False,
    model_path=None,
    num_unroll_steps=5,
    cuda=False,
    device="cpu",
    use_augmentation=False,
    env_type="not_board_games",
    num_segments=3,
    game_segment_length=20,
    update_per_collect=None,
    replay_ratio=0.05,
    batch_size=16,
    optim_type="AdamW",
    piecewise_decay_lr_scheduler=False,
    learning_rate=0.0001,
    target_update_freq=100,
    grad_clip_value=5,
    num_simulations=3,
    reanalyze_ratio=0.0,
    n_episode=3,
    eval_freq=50,
    replay_buffer_size=int(1e6),
    collector_env_num=collectors,
    evaluator_env_num=evaluators,
    buffer_reanalyze_freq=1 / 50000000,
    reanalyze_batch_size=160,
    reanalyze_partition=0.75,
    enable_async_training=True,
    data_queue_size=10,
    evaluator_check_interval=2.0,
    thread_timeout=2.0,
    enable_async_debug_log=False,
)
env = dict(
    env_name="CartPole-v0",
    continuous=False,
    manually_discretization=False,
    collector_env_num=collectors,
    evaluator_env_num=evaluators,
    n_evaluator_episode=evaluators,
    manager=dict(shared_memory=False),
)
main_config = EasyDict(dict(exp_name="data/cartpole_async", env=env, policy=policy))
create_config = EasyDict(
    dict(
        env=dict(type="cartpole_lightzero", import_names=["zoo.cartpole.envs.cartpole_lightzero_env"]),
        env_manager=dict(type="subprocess"),
        policy=dict(type="unizero", import_names=["lzero.policy.unizero"]),
    )
)

if __name__ == "__main__":
    from headway.cli.lightzero_entries import train_unizero_segment_async

    policy = train_unizero_segment_async([main_config, create_config], seed=0, max_env_step=max_env_step)
    action = policy.act(policy.make_env().reset(seed=0)[0])
    assert action in (0, 1)
