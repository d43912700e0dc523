"""Pictures of docs/results.md: cooperation and divided work."""

from table_pictures import RIGHT, TRAINED, SeedDots, SeedValues, TablePicture, TableSource

COOPERATION_PICTURES: list[TablePicture] = [
    SeedDots(
        name="signal",
        title="Stag hunt with a message: a shared reward finds the stag",
        label="team's return",
        sources=[TableSource(section="Cooperation through a shared reward")],
        rows={
            "MAGRPO: the team's return": "credit=magrpo",
            "Dr. GRPO, both players are paid the mean": "credit=dr_grpo in",
            "Dr. GRPO, each player's own return": "credit=dr_grpo, each",
        },
        sets={
            "before training": SeedValues(columns=["before"]),
            "after training": SeedValues(columns=["after"]),
        },
    ),
    SeedDots(
        name="lasting_cooperation",
        title="Prisoner's dilemma: cooperation with Advantage Alignment and without it",
        label="fraction of moves that cooperate",
        sources=[TableSource(section="Cooperation that lasts")],
        rows={
            "one policy, Advantage Alignment": "",
            "one policy, own return alone": "",
            "two policies, Advantage Alignment": "",
            "two policies, own return alone": "",
            "two errors in ten, Advantage Alignment": "one policy, two errors in ten, Advantage",
            "two errors in ten, own return alone": "one policy, two errors in ten, own",
            "three errors in ten, Advantage Alignment": "one policy, three errors in ten, A",
            "three errors in ten, own return alone": "one policy, three errors in ten, own",
        },
        sets={
            "after 50 steps": SeedValues(columns=["step 50"]),
            "after 200 steps": SeedValues(columns=["step 200"]),
        },
    ),
    SeedDots(
        name="lasting_cooperation_smollm2",
        title="Prisoner's dilemma: SmolLM2 with Advantage Alignment and without it",
        label="fraction of moves that cooperate",
        sources=[TableSource(section="A real language model cooperates")],
        rows={
            "Advantage Alignment": "SmolLM2, Advantage Alignment",
            "own return alone": "SmolLM2, own return alone",
        },
        sets={
            "after 25 steps": SeedValues(columns=["step 25"]),
            "after 100 steps": SeedValues(columns=["step 100"]),
        },
    ),
    SeedDots(
        name="lasting_gifts",
        title="Public goods of four players: with Advantage Alignment and without it",
        label="fraction of coins that are given",
        sources=[TableSource(section="Cooperation of four players")],
        rows={
            "Advantage Alignment": "four players, Advantage Alignment",
            "own return alone": "four players, own return alone",
        },
        sets={
            "after 50 steps": SeedValues(columns=["step 50"]),
            "after 200 steps": SeedValues(columns=["step 200"]),
        },
    ),
    SeedDots(
        name="collaboration",
        title="Two agents that write one program: trained together or apart",
        label="held-out return, % of the maximum",
        sources=[TableSource(section="Two agents that write one program")],
        sets={"seeds": SeedValues(columns=["seeds 0 to 4"])},
    ),
    SeedDots(
        name="delegation",
        title="A planner that calls workers: both must learn",
        label=RIGHT,
        sources=[TableSource(section="A planner that calls workers")],
        rows={
            "one advantage for all turns (MATPO)": "one advantage",
            "advantages by role": "",
            "workers do not learn": "",
            "a price for each worker": "a price",
            "a planner without workers": "",
        },
        sets=TRAINED,
    ),
]
