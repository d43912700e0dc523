"""Overrides of a tic-tac-toe run with a league."""

SCRIPT = "_target_: selfplay.engines.scripted.Scripted"


GAME = (
    *("services=none", "arena=tic_tac_toe", "arena.illegal=random_legal"),
    *("roles=tic_tac_toe", "roles.player.style=terse", "curriculum=games", "curriculum.batch=4"),
    *("evaluations=none", "warmstart=random_play", "warmstart.steps=20", "credit=dr_grpo"),
    *("credit.group_by=agent", "objective=magrpo", "sampler.group_size=2", "run.threads=1"),
    *("run.steps=3", "run.checkpoint_every=1", "run.keep_checkpoints=2"),
    *("sampling.default.max_tokens=2", "learner.lr=1e-2"),
    f"+population.opponents.random={{{SCRIPT}, script: arenas.games.opponents.random_legal}}",
    f"+population.opponents.perfect={{{SCRIPT}, script: arenas.games.tic_tac_toe.minimax}}",
)


VERSUS = (
    "+evaluations.versus={arena: ${arena}, tasks: [{_target_: selfplay.types.Task, id: game}], "
    "metrics: {}, samples: 2, opponents: [random, perfect]}"
)


ANCHORS = (
    *("league=anchors", "league.players.default.add.updates=1", "league.drop.most=2"),
    *("league.opponents_per_step=0", "objective.kl=0.1", "objective.reference=ema", VERSUS),
)
