"""Tests of `selfplay play`: a person plays one agent, in a run or in an arena."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arenas.games.negotiation import Negotiation
from selfplay.config.compose import config_folder
from selfplay.engines.human import HumanEngine, HumanQuestion
from selfplay.errors import ConfigError, RunError
from selfplay.experiment.human_play import YOU, at_terminal, ending, play
from selfplay.run.record_reader import decode, record_of
from selfplay.types import Episode, Status, Task
from tests.helpers.command_process import finished, one_line, run
from tests.helpers.recorded_run import HOSTILE, turn

MINIMAX = "arenas.games.tic_tac_toe.minimax"


def first_free(question: HumanQuestion) -> str:
    """Return the first square that the prompt lists as free."""
    text = str(question.messages[-1]["content"])
    return text.rpartition("nothing else: ")[2].split(",")[0]


@pytest.mark.parametrize("agent", ["player_0", "player_1"])
def test_games_are_played_to_their_end_and_saved_as_episodes(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    games = list(play("tic_tac_toe", agent=agent, ask=first_free, script=MINIMAX, games=2, seed=0))
    assert len({path for _, path in games}) == 2
    for episode, path in games:
        assert episode.status is Status.FINISHED and episode.policy_map == {agent: YOU}
        mine = [turn for turn in episode.turns if turn.agent == agent]
        assert {turn.policy for turn in mine} == {YOU} and not any(t.trainable for t in mine)
        assert sum(turn.reward for turn in mine) <= 0  # minimax never loses
        data = decode(path.read_bytes())
        assert record_of(data, step=0, line=1, path=path).episode == episode


def test_an_illegal_move_asks_again_and_the_legal_ones_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    entered = iter(["fold", "", "bet", "bet", "bet"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(entered))
    shown: list[str] = []
    seat: dict[str, Any] = {"agent": "player_0", "ask": at_terminal, "script": ""}
    games = play("kuhn", **seat, games=1, seed=0, begin=shown.append)
    ((episode, _),) = games
    out = capsys.readouterr().out
    assert next(t.action for t in episode.turns if t.agent == "player_0") == "bet"
    assert episode.metrics["illegal"] == 0
    assert "'fold' is not a legal move; enter another move" in out
    assert "'' is no answer (empty)" in out and out.count("legal moves: pass, bet") >= 3
    assert shown[0].startswith("Kuhn poker: one hand") and "Version history" not in shown[0]
    last = episode.turns[-1]
    assert f"{last.agent}: {last.action!r}" in ending(episode)


def test_a_scripted_speaker_says_nothing_and_the_rules_list_the_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rules: list[str] = []
    seat: dict[str, Any] = {"agent": "partner_0", "ask": lambda asked: "home", "script": ""}
    ((episode, _),) = play("signal", **seat, games=1, seed=0, begin=rules.append)
    assert episode.status is Status.FINISHED and episode.turns[0].spoken
    assert "north: scout_0 hunt, partner_0 north: scout_0 gets 4, partner_0 gets 4" in rules[0]
    home = [turn for turn in episode.turns if turn.agent == "partner_0"]
    assert home[0].legal == ("north", "south", "home") and not home[0].spoken


def test_an_offer_in_another_order_with_a_message_is_legal() -> None:
    arena = Negotiation()
    arena.begin(arena.default_task(Random(0)), 0)
    seen = arena.view("party_0" if "party_0" in arena.agents else arena.agents[0])
    offer = seen.fields["legal"][-1]
    word, *items = offer.split()
    assert arena.is_legal(seen, offer) and arena.is_legal(seen, f"{offer}\nplease")
    assert arena.is_legal(seen, " ".join([word, *items[::-1]]))
    assert not arena.is_legal(seen, "offer") and not arena.is_legal(seen, "accept")


def test_the_text_at_the_end_of_a_game() -> None:
    moved = turn("player_0", "five", -1.0, action="5", info={"verdict": "illegal"}, stage=0)
    played = Episode(
        arena="made",
        task=Task(id="t"),
        seed=0,
        turns=(moved,),
        status=Status.FINISHED,
        metrics={"forfeit": 1.0},
    )
    assert ending(played) == "The game ended with:\nplayer_0: '5' (illegal)\nforfeit 1"
    assert "cut off" in ending(replace(played, status=Status.TRUNCATED))
    failed = replace(played, status=Status.FAILED, error="KeyError: x")
    assert ending(failed) == "The arena failed: KeyError: x"


def test_a_person_sits_among_the_policies_of_a_run(tmp_path: Path) -> None:
    asked: list[str] = []

    def answers(question: HumanQuestion) -> str:
        asked.append(question.agent)
        return "<think></think><answer>7</answer>"

    folder = finished()
    ((episode, path),) = play(
        str(folder), agent="solver_1", ask=answers, script="", games=1, seed=0
    )
    assert path.parent == folder / "games" and set(asked) <= {"solver_1"}
    others = {turn.policy for turn in episode.turns if turn.agent != "solver_1"}
    assert others == {"base"}
    assert episode.status is Status.FINISHED


def test_a_run_is_played_at_another_checkpoint_that_it_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished(), folder)
    played: dict[str, Any] = {"agent": "solver_1", "ask": lambda *asked: "?", "script": ""}
    ((episode, path),) = play(f"{folder}@2", games=1, seed=0, **played)
    state = json.loads((folder / "checkpoints/000002/state.json").read_text())
    versions = {turn.version for turn in episode.turns if turn.agent != "solver_1"}
    assert path.parent == folder / "games" and versions == {state["versions"]["base"]}
    with pytest.raises(RunError, match=r"kept no checkpoint of step 9; it has .*2, 3"):
        next(play(f"{folder}@9", games=1, seed=0, **played))


def test_an_arena_is_played_with_changed_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    heads: dict[str, Any] = {"agent": "player_0", "ask": lambda *asked: "heads", "script": ""}
    asked: dict[str, Any] = {"overrides": ["arena.rounds=3"], "games": 1, "seed": 0}
    ((episode, _),) = play("matching_pennies", **heads, **asked)
    assert len([turn for turn in episode.turns if turn.agent == "player_0"]) == 3


def test_an_arena_of_a_users_folder_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine/arena").mkdir(parents=True)
    shipped = (config_folder() / "arena/tic_tac_toe.yaml").read_text()
    (tmp_path / "mine/arena/noughts.yaml").write_text(shipped)
    seat: dict[str, Any] = {"agent": "player_0", "ask": first_free, "script": MINIMAX}
    own = ["roles=tic_tac_toe"]
    ((episode, _),) = play("noughts", **seat, games=1, seed=0, overrides=own, search=["mine"])
    assert episode.status is Status.FINISHED
    with pytest.raises(ConfigError, match="no arena 'noughts'"):
        next(play("noughts", **seat, games=1, seed=0))


def test_a_run_is_played_with_changed_settings() -> None:
    seat: dict[str, Any] = {"agent": "proposer_0", "ask": lambda *asked: "?", "script": ""}
    folder = str(finished())
    ((episode, _),) = play(folder, **seat, games=1, seed=0, overrides=["arena.malformed=-3"])
    assert [turn.reward for turn in episode.turns if turn.agent == "proposer_0"] == [-3.0]
    with pytest.raises(ConfigError, match=r"has its own config; change it with key=value"):
        next(play(folder, **seat, games=1, seed=0, search=["mine"]))


def test_texts_of_other_agents_print_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "one\\ntwo")
    messages = [
        {"role": "user", "content": "seen before"},
        {"role": "assistant", "content": "said before"},
        {"role": "user", "content": HOSTILE},
    ]
    assert at_terminal(HumanQuestion(agent="solver_0", messages=messages)) == "one\ntwo"
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "<script>" in shown
    assert "before" not in shown


def test_a_person_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="is a person and cannot be trained"):
        HumanEngine(first_free).publish(YOU, {}, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tic_tac_to", "--as", "player_0"), "did you mean 'tic_tac_toe'?"),
        (("tic_tac_toe", "--as", "player_7"), "--as player_7: no such seat"),
        (("tic_tac_toe", "--as", "player_0", "--against", "arenas.nobody"), "--against"),
        (("tic_tac_toe", "--as", "player_0"), "no more input"),
        (("tic_tac_toe",), "play needs --as AGENT, your agent (player_0, player_1)"),
        (("tic_tac_toe", "--as", "player_0", "--games", "0"), "--games 0: at least 1 is needed"),
        ((".@start", "--as", "player_0"), ".@start: 'start' is not a step; write RUN, or RUN@STEP"),
        (("tic_tac_toe", "--as", "player_0", "--port", "0"), "--port is for the page"),
        (("tic_tac_toe", "--as", "player_0", "--host", "::"), "--host is for the page"),
        ((".", "--as", "player_0", "--against", MINIMAX), "use the policies of the run"),
        (
            ("tic_tac_toe", "--as", "player_0", "--against", "os.system"),
            "os.system is not an opponent",
        ),
        (("tic_tac_toe", "--as", "player_0", "arena.size=9"), "arena.size"),
        (("tic_tac_toe", "--as", "player_0", "nonsense"), "key=value"),
        (("tic_tac_toe", "--as", "player_0", "--config-dir", "nowhere"), "no such folder"),
        (
            (
                "collaboration",
                "--as",
                "helper_0",
                "--against",
                "arenas.games.opponents.random_legal",
            ),
            "no",
        ),
    ],
)
def test_a_refused_game_is_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    outcome = run("play", *arguments, cwd=tmp_path)
    assert outcome.code == 2 and words in one_line(outcome.err)
