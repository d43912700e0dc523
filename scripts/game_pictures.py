"""Pictures of docs/results.md: games, debates and self-made tasks."""

from table_pictures import (
    RIGHT,
    SEED,
    TRAINED,
    CellIntervals,
    CellMatrix,
    SeedDots,
    SeedValues,
    StepCurves,
    TablePicture,
    TableSource,
)

PROGRAMS: list[TablePicture] = [
    CellIntervals(
        name="quickstart",
        title="Absolute Zero on a laptop: what self-play adds",
        label="change, percentage points",
        sources=[TableSource(section="Absolute Zero on a laptop")],
        columns=["points (lowest"],
        null=0.0,
    ),
    SeedDots(
        name="quickstart_controls",
        title="Absolute Zero on a laptop: self-play and its controls",
        label="held-out accuracy after 40 steps, sampled, %",
        sources=[TableSource(section="Absolute Zero on a laptop", table=1)],
        rows={
            "self-play": "self-play, the proposer is paid by learnability",
            "self-play, paid at random": "self-play, the proposer is paid at random",
            "fixed tasks": "fixed tasks",
        },
        sets={"after 40 steps": SeedValues(columns=["sampled, seeds"])},
    ),
    SeedDots(
        name="growing_programs",
        title="Held-out programs: growing tasks against fixed tasks",
        label="held-out accuracy, %",
        sources=[TableSource(section="Tasks that grow against fixed tasks")],
        sets={
            "before training": SeedValues(columns=["growing"], side="before"),
            "after training on growing tasks": SeedValues(columns=["growing"]),
            "after training on fixed tasks": SeedValues(columns=["fixed"]),
        },
    ),
    CellIntervals(
        name="growing_programs_parts",
        title="Held-out programs of 4 to 6 lines: accuracy minus that after fixed tasks",
        label="difference, percentage points",
        sources=[TableSource(section="Tasks that grow against fixed tasks", table=1)],
        rows={
            "growing, the proposer does not learn": "",
            "growing, the proposer learns": "growing, the proposer learns (3e-5)",
            "growing, the proposer learns, random pay": "growing, the proposer learns (3e-5): ",
            "growing, from any program": "growing from any",
            "uniform over the held-out lengths": "",
        },
        columns=["minus fixed tasks"],
        null=0.0,
    ),
    SeedDots(
        name="growing_depths",
        title="Held-out programs by depth of composition",
        label="held-out accuracy, %",
        sources=[TableSource(section="Tasks that grow against fixed tasks", table=3)],
        sets={
            "before training": SeedValues(columns=["growing"], side="before"),
            "after training on growing tasks": SeedValues(columns=["growing"]),
            "after training on fixed tasks": SeedValues(columns=["fixed"]),
            "one line left out": SeedValues(columns=["one line left out"]),
        },
    ),
    SeedDots(
        name="rare_lines_proposed",
        title="Rare lines in the proposals",
        label="rare lines of all proposed lines, %",
        sources=[TableSource(section="A proposer that finds what the solver lacks")],
        sets={
            "steps 1 to 10": SeedValues(columns=["rare lines"], side="before"),
            "steps 91 to 100": SeedValues(columns=["rare lines"]),
        },
    ),
    SeedDots(
        name="rare_lines_accuracy",
        title="Held-out programs with one rare line",
        label="held-out accuracy, %",
        sources=[TableSource(section="A proposer that finds what the solver lacks")],
        sets={
            "before training": SeedValues(columns=["one rare line"], side="before"),
            "after 100 steps": SeedValues(columns=["one rare line"]),
        },
    ),
]

GAMES: list[TablePicture] = [
    SeedDots(
        name="leduc",
        title="Leduc poker: only a KL term to an EMA comes near equilibrium",
        label="exploitability, chips a hand",
        sources=[TableSource(section="Leduc poker")],
        rows={"before training": "before", "with the EMA": "", "without the EMA": "without"},
        sets={"seeds": SeedValues(columns=SEED)},
    ),
    StepCurves(
        name="kuhn_student",
        title="Kuhn poker: a student of the trained policy, and training by rewards",
        label="exploitability, chips a hand",
        sources=[TableSource(section="A student of the trained policy")],
        series={
            name: [f"{name}, seed {seed}" for seed in range(3)]
            for name in ("distillation", "rewards")
        },
    ),
    StepCurves(
        name="smollm2_kuhn_student",
        title="SmolLM2 in Kuhn poker: two students of a trained policy",
        label="exploitability, chips a hand",
        sources=[TableSource(section="A student of SmolLM2")],
        series={
            "distillation, rate 5e-4": [
                f"distillation, learner.lr=5e-4, seed {seed}" for seed in range(2)
            ],
            "distillation, rate 1e-4": [
                f"distillation, learner.lr=1e-4, seed {seed}" for seed in range(2)
            ],
            "rewards, rate 1e-4": ["rewards"],
        },
    ),
    StepCurves(
        name="leduc_exact",
        title="Leduc poker with the exact values of all moves",
        label="exploitability, chips a hand",
        sources=[TableSource(section="Leduc poker", table=2)],
        transposed=True,
        columns=["step "],
        series={"exact values": SEED},
    ),
    CellIntervals(
        name="leduc_leagues",
        title="Leduc poker with a KL term: no league is shown to help",
        label="exploitability, chips a hand",
        sources=[TableSource(section="Leduc poker", table=4)],
        rows={"no league": "league=none", "pfsp": "", "nash": "", "uniform": "", "alphastar": ""},
        columns=["mean (95 % interval)"],
    ),
    StepCurves(
        name="leduc_long",
        title="Leduc poker: 12 million sampled hands",
        label="exploitability, chips a hand",
        sources=[TableSource(section="Leduc poker", table=1)],
        series={f"seed {seed}": [f"seed {seed}"] for seed in range(3)},
        columns=[str(step) for step in (100, 200, 400, 800, 1200, 1600, 2000, 2400, 2800, 3200)],
    ),
    CellMatrix(
        name="connect_four_search",
        title="Connect Four: more simulations play better",
        label="gain of the row against the column",
        sources=[TableSource(section="Connect Four")],
        columns={
            "mcts_1000": "",
            "mcts_100": "",
            "random play": "",
            "tiny model": "the tiny model",
        },
    ),
    StepCurves(
        name="connect_four",
        title="Connect Four: training beats random play and not tree search",
        label="mean return of a game",
        sources=[TableSource(section="Connect Four", table=1)],
        series={
            "against random play": ["return against random play"],
            "against mcts_100": ["return against mcts_100"],
        },
    ),
]

DEBATES: list[TablePicture] = [
    SeedDots(
        name="debate",
        title="Debate that corrects: first round and last round",
        label=RIGHT,
        sources=[TableSource(section="Debate that corrects")],
        rows=["majority of the first round", "last round, mean of the debaters"],
        sets=TRAINED,
    ),
    SeedDots(
        name="malt",
        title="Preference pairs in a pipeline: two rules of pairs",
        label=RIGHT,
        sources=[TableSource(section="Preference pairs in a pipeline")],
        rows={
            "pairs of unequal value": "",
            "MALT's own pairs": "",
        },
        sets=TRAINED,
    ),
    CellIntervals(
        name="maca",
        title="Learning from the majority (MACA): change of the last round's accuracy",
        label="change, percentage points",
        sources=[TableSource(section="Debate that corrects", table=1)],
        rows={
            "from the warm start": "",
            "after training in tiny/debate": "after 60 steps",
            "the same with a lower learning rate": "the same with learner.lr",
            "the same, and votes of a whole group": "",
        },
        columns=["change"],
        null=0.0,
    ),
    SeedDots(
        name="judged_debate",
        title="A judge that decides twice: right verdicts, and verdicts for a place",
        label="% of the verdicts",
        sources=[TableSource(section="A judge that decides twice")],
        rows={
            "one verdict: right": "one verdict: right, %",
            "one verdict: for the side shown first": "one verdict: right, %: verdicts",
            "two verdicts: right": "two verdicts, the second with the sides exchanged: right",
            "two verdicts: for the side shown first": "two verdicts, the second with the sides "
            "exchanged: right: ",
            "agreement paid: right": "two verdicts, agreement paid with 0.5: right",
            "agreement paid: for the side shown first": "two verdicts, agreement paid with 0.5: "
            "right: ",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="evidence_debate",
        title="An honest and a deceptive debater: self-play comes near the value of the game",
        label="debates that the honest side wins, %",
        sources=[TableSource(section="An honest and a deceptive debater")],
        rows=[
            "the honest side speaks first",
            "the deceptive side speaks first",
            "both at once",
            "all",
        ],
        sets={
            "before training (mean)": SeedValues(columns=["before, mean"]),
            "after training": SeedValues(columns=["after, seeds"]),
            "optimal play": SeedValues(columns=["optimal play"]),
        },
    ),
    SeedDots(
        name="evidence_judge",
        title="A judge that learns together with both sides, before and after training",
        label="right verdicts, and debates that the honest side wins, %",
        sources=[TableSource(section="An honest and a deceptive debater", table=2)],
        rows={
            "right verdicts, steps 1 to 40": "right verdicts in steps 1 to 40",
            "right verdicts, steps 261 to 300": "right verdicts in steps 261 to 300",
            "the honest side wins, before": "debates that the honest side wins, before",
            "the honest side wins, after": "debates that the honest side wins, after",
        },
        sets={"a judge that learns": SeedValues(columns=["seeds 0, 1, 2"])},
    ),
    CellIntervals(
        name="attacked_answers",
        title="A solver under attack: no difference between adversaries in training is shown",
        label="right last answers, %",
        sources=[TableSource(section="A solver under attack")],
        rows={
            "wrong number named": "right last answers, a rule names a wrong",
            "right number named": "right last answers, a rule names the right",
            "no challenge": "right last answers, no challenge",
        },
        columns=["adversary learns", "adversary fixed", "no adversary"],
    ),
]

TIC_TAC_TOE: list[TablePicture] = [
    SeedDots(
        name="tic_tac_toe_league",
        title="Tic-tac-toe: pure self-play collapses, a league with an anchor does not",
        label="mean return against random play",
        sources=[TableSource(section="Tic-tac-toe: pure self-play")],
        sets={"seeds": SeedValues(columns=["seeds 0 to 4"])},
        null=0.0,
    ),
    CellIntervals(
        name="tic_tac_toe_kl_leagues",
        title="Tic-tac-toe with a KL term: no league is shown to help",
        label="exploitability, mean of both seats",
        sources=[TableSource(section="Tic-tac-toe: pure self-play", table=3)],
        rows={"no league": "none", "pfsp": "", "nash": "", "uniform": "", "alphastar": ""},
        columns=["mean (95 % interval)"],
    ),
    SeedDots(
        name="rae",
        title="Collapse with and without RAE and a KL term",
        label="mean return against random play",
        sources=[TableSource(section="Does RAE prevent")],
        rows={
            "warm start": "",
            "an average for each seat (RAE)": "an average for each seat (algorithm",
            "one average for both seats": "one average for both seats (credit",
            "an average for each seat, KL term": "an average for each seat, and",
            "one average for both seats, KL term": "one average for both seats, and",
        },
        sets={"seeds": SeedValues(columns=SEED)},
        null=0.0,
    ),
    SeedDots(
        name="tic_tac_toe_minimax",
        title="Tic-tac-toe: trained against minimax, or in a league without it",
        label="games, %, exact chances",
        sources=[
            TableSource(section="Draws against minimax", name="minimax"),
            TableSource(section="Draws against minimax", table=1, name="league"),
        ],
        transposed=True,
        rows={
            "drawn against minimax as X": "minimax, as X: drawn",
            "drawn against minimax as O": "minimax, as O: drawn",
            "lost against random play as X": "random, as X: lost",
            "lost against random play as O": "random, as O: lost",
        },
        sets={
            "against minimax, most probable moves": SeedValues(columns=["minimax: most"]),
            "against minimax, sampled moves": SeedValues(columns=["minimax: sampled"]),
            "league with random play, most probable moves": SeedValues(columns=["league: "]),
        },
    ),
]

SPECIALISTS = {
    "the teachers": "the three teachers",
    "the student, 50 steps": "the student after 50",
    "the student, 100 steps": "the student after 100",
    "rewards alone, 100 steps": "rewards alone",
}

SELF_MADE: list[TablePicture] = [
    SeedDots(
        name="four_curricula",
        title="Four curricula and their controls",
        label="accuracy, %",
        sources=[TableSource(section="Four curricula against their controls")],
        sets=TRAINED,
    ),
    CellIntervals(
        name="specialists_games",
        title="Three specialists and one student: Kuhn poker and tic-tac-toe",
        label="mean return per game against random play",
        sources=[TableSource(section="Three specialists and one student")],
        rows=SPECIALISTS,
        columns=["Kuhn", "tic-tac-toe"],
        null=0.0,
    ),
    CellIntervals(
        name="specialists_hunt",
        title="Three specialists and one student: a stag hunt that needs a message",
        label="mean return of both players (optimum 4)",
        sources=[TableSource(section="Three specialists and one student")],
        rows=SPECIALISTS,
        columns=["stag hunt"],
    ),
    CellIntervals(
        name="envgen",
        title="Designed games: score of the players, minus that with random designs",
        label="difference, percentage points",
        sources=[TableSource(section="Designed games")],
        rows={
            "a designer that learns, paid for spread": "of a designer that learns, pay: spread",
            "a designer that learns, paid for progress": "of a designer that learns, credit",
            "a designer that learns, paid at random": "of a designer that learns, pay: random",
            "one fixed game": "",
            "given: different random games": "given",
        },
        columns=["score minus"],
        null=0.0,
    ),
]

GAME_PICTURES = [*PROGRAMS, *GAMES, *DEBATES, *TIC_TAC_TOE, *SELF_MADE]
