"""Pictures of the tables of docs/bakeoff.md that no script of a bake-off draws."""

from table_pictures import CellIntervals, TablePicture, TableSource

CREDIT = "Credit methods at equal completions"
TASKS = "Several tasks at once"
WORDS = "Games of words"
GAMES = {
    "collaboration": TableSource(section=WORDS, table=2),
    "repair": TableSource(section=WORDS, table=3),
    "debate": TableSource(section=WORDS, table=6),
    "long_road": TableSource(section="A long game"),
}
"""Games that language models play to the tables of their methods."""
MEMORY = [
    TableSource(section=WORDS, table=4, name="1e-3"),
    TableSource(section=WORDS, table=5, name="3e-3"),
]
"""The tables of `memory`, by learning rate."""

BAKEOFF: list[TablePicture] = [
    CellIntervals(
        name="bakeoff_tasks_direction",
        title="Several tasks at once: direction of the mean gradient",
        label="cosine to the exact gradient",
        sources=[TableSource(section=TASKS)],
        columns=["paid early: direction"],
        null=1.0,
    ),
    CellIntervals(
        name="bakeoff_tasks_noise",
        title="Several tasks at once: noise of a batch",
        label="relative variance of one batch",
        sources=[TableSource(section=TASKS)],
        columns=["paid early: noise"],
    ),
    CellIntervals(
        name="bakeoff_arpo",
        title="ARPO's branches: area minus that of independent plays",
        label="area minus the area of rloo",
        sources=[
            TableSource(section=CREDIT, table=1, name="relay, tuned rate"),
            TableSource(section=CREDIT, table=2, name="steps, tuned rate"),
            TableSource(section=CREDIT, table=4, name="steps, one rate"),
        ],
        rows=[
            "relay, tuned rate: dr_grpo, branch",
            "relay, tuned rate: arpo, branch",
            "steps, tuned rate: dr_grpo, branch",
            "steps, tuned rate: arpo, branch",
            "steps, one rate: arpo, branch",
        ],
        columns=["gain"],
        null=0.0,
    ),
    CellIntervals(
        name="bakeoff_memory",
        title="memory",
        label="area minus the area of rloo",
        sources=MEMORY,
        columns=["gain"],
        null=0.0,
    ),
    *(
        CellIntervals(
            name=f"bakeoff_{game}",
            title=game,
            label="area minus the area of rloo",
            sources=[table],
            columns=["gain"],
            null=0.0,
        )
        for game, table in GAMES.items()
    ),
]
