"""Arenas: the games, each one a PettingZoo environment in its own file.

Importing this package registers them: `pettingzoo.make("aec", "selfplay/absolute_zero_v0")`.
"""

from pettingzoo import register

# Entry points are strings, so that an arena is imported only when it is made.
register("aec", "selfplay/absolute_zero_v0", entry_point="arenas.absolute_zero.arena:env")
register("aec", "selfplay/attacked_answers_v0", entry_point="arenas.questions.attacked:env")
register("aec", "selfplay/cited_answers_v0", entry_point="arenas.questions.cited:env")
register("aec", "selfplay/collaboration_v0", entry_point="arenas.collaboration.arena:env")
register("aec", "selfplay/corpus_questions_v0", entry_point="arenas.questions.corpus_questions:env")
register("aec", "selfplay/debate_v0", entry_point="arenas.debate.arena:env")
register("aec", "selfplay/delegation_v0", entry_point="arenas.collaboration.delegation:env")
register("aec", "selfplay/designed_games_v0", entry_point="arenas.design.arena:env")
register("aec", "selfplay/desk_v0", entry_point="arenas.desk.arena:env")
register("aec", "selfplay/evidence_debate_v0", entry_point="arenas.debate.evidence:env")
register("aec", "selfplay/judged_debate_v0", entry_point="arenas.debate.judged:env")
register("aec", "selfplay/judged_questions_v0", entry_point="arenas.questions.judged:env")
register("aec", "selfplay/kuhn_v0", entry_point="arenas.games.kuhn:env")
register("aec", "selfplay/leduc_v0", entry_point="arenas.games.leduc:env")
register("aec", "selfplay/long_road_v0", entry_point="arenas.games.long_road:env")
register("aec", "selfplay/long_text_v0", entry_point="arenas.memory.long_text:env")
register("aec", "selfplay/matrix_v0", entry_point="arenas.games.matrix:env")
register("aec", "selfplay/memory_v0", entry_point="arenas.memory.arena:env")
register("aec", "selfplay/mixture_v0", entry_point="arenas.mixture.arena:env")
register("aec", "selfplay/negotiation_v0", entry_point="arenas.games.negotiation:env")
register("aec", "selfplay/pipeline_v0", entry_point="arenas.collaboration.pipeline:env")
register("aec", "selfplay/public_goods_v0", entry_point="arenas.games.public_goods:env")
register("aec", "selfplay/questions_v0", entry_point="arenas.questions.arena:env")
register("aec", "selfplay/repair_v0", entry_point="arenas.collaboration.repair:env")
register("aec", "selfplay/simulated_search_v0", entry_point="arenas.questions.simulated_search:env")
register("aec", "selfplay/tau2_v0", entry_point="arenas.tau2.arena:env")
register("aec", "selfplay/tic_tac_toe_v0", entry_point="arenas.games.tic_tac_toe:env")
