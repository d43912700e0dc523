"""Pictures of docs/results.md: SmolLM2-135M, memories, long texts, tools and searches."""

from table_pictures import (
    RIGHT,
    SEED,
    TRAINED,
    CellMatrix,
    SeedDots,
    SeedValues,
    StepCurves,
    TablePicture,
    TableSource,
)

PERCENT_OF_QUESTIONS = "held-out questions, %"
MATCH = "exact match, %"
SIMULATED = "right answers, real search: right answers, simulator"
"""Label of a row of right answers with the simulator, without its beginning."""

SMOLLM2: list[TablePicture] = [
    StepCurves(
        name="smollm2_kuhn",
        title="SmolLM2-135M in Kuhn poker",
        label="exploitability, chips a hand",
        sources=[TableSource(section="A real language model plays Kuhn poker")],
        series={
            "KL to a reference, three seeds": ["0", "1", "2"],
            "without the reference, seed 0": ["0, without"],
        },
    ),
    StepCurves(
        name="smollm2_leduc",
        title="SmolLM2-135M in Leduc poker",
        label="exploitability, chips a hand",
        sources=[TableSource(section="A real language model plays Leduc poker")],
        series={
            "as shipped": ["0", "1", "2"],
            "KL to an EMA": ["0, KL", "1, KL", "2, KL"],
        },
    ),
    SeedDots(
        name="smollm2_leduc_mean",
        title="SmolLM2-135M in Leduc poker: the last weights and the mean of weights",
        label="exploitability, chips a hand",
        sources=[TableSource(section="More steps, and the mean", table=1)],
        transposed=True,
        sets={"seeds": SeedValues(columns=["0", "1", "2"])},
    ),
    SeedDots(
        name="smollm2_tic_tac_toe",
        title="SmolLM2-135M in tic-tac-toe against minimax",
        label="drawn games, %",
        sources=[TableSource(section="A real language model plays tic-tac-toe")],
        transposed=True,
        sets={
            "before training, sampled moves": SeedValues(columns=["before, sampled"]),
            "after training, sampled moves": SeedValues(columns=["after, sampled"]),
            "after training, most probable moves": SeedValues(columns=["after, most"]),
        },
    ),
    StepCurves(
        name="smollm2_tic_tac_toe_steps",
        title="SmolLM2-135M in tic-tac-toe: games of training against minimax",
        label="drawn games, %",
        sources=[TableSource(section="A real language model plays tic-tac-toe", table=1)],
        series={"drawn": SEED},
    ),
    SeedDots(
        name="smollm2_pipeline",
        title="SmolLM2-135M discusses an answer",
        label=RIGHT,
        sources=[TableSource(section="A real language model discusses")],
        rows={
            "refiner": "of the refiner",
            "refiner, largest": "of the refiner: largest",
            "refiner, smallest": "of the refiner: smallest",
            "refiner, in the middle": "of the refiner: in the middle",
            "generator": "of the generator",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="smollm2_absolute_zero",
        title="SmolLM2-135M proposes functions and predicts outputs",
        label="% of the held-out functions, or of the proposals",
        sources=[TableSource(section="A real language model proposes functions")],
        rows={
            "right outputs, self-play": "right outputs after self-play",
            "right outputs, fixed tasks": "right outputs after training on fixed tasks",
            "valid proposals, self-play": "valid proposals",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="smollm2_memory",
        title="SmolLM2-135M keeps a memory",
        label=PERCENT_OF_QUESTIONS,
        sources=[TableSource(section="A real language model keeps a memory")],
        rows={
            "answered right (exact match)": "",
            "the fact is among the memories": "whose fact",
        },
        sets=TRAINED,
    ),
    CellMatrix(
        name="other_arenas",
        title="SmolLM2-135M in other arenas: change of right answers or draws",
        label="percentage points",
        sources=[TableSource(section="What a real language model loses")],
        rows={
            "trained in kuhn": "kuhn",
            "trained in leduc": "leduc",
            "trained in absolute_zero": "absolute_zero",
            "trained in tic_tac_toe": "tic_tac_toe",
            "trained in memory": "memory",
            "trained in pipeline": "pipeline",
        },
        columns={
            "pipeline": "",
            "absolute_zero": "",
            "memory": "",
            "tic_tac_toe": "",
        },
        side="change",
    ),
    CellMatrix(
        name="other_arenas_poker",
        title="SmolLM2-135M in other poker games: change of exploitability",
        label="chips a hand",
        sources=[TableSource(section="What a real language model loses")],
        rows={
            "trained in kuhn": "kuhn",
            "trained in leduc": "leduc",
            "trained in absolute_zero": "absolute_zero",
            "trained in tic_tac_toe": "tic_tac_toe",
            "trained in memory": "memory",
            "trained in pipeline": "pipeline",
        },
        columns=["kuhn", "leduc"],
        side="change",
    ),
    SeedDots(
        name="smollm2_taskset",
        title="SmolLM2-135M puts words in alphabetical order",
        label="reward, %",
        sources=[TableSource(section="A real language model learns a taskset")],
        rows={
            "three words, held out": "",
            "four words": "",
            "three words, paid for the words in any order": "",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="smollm2_reasoning",
        title="SmolLM2-135M answers questions of reasoning_gym",
        label=RIGHT,
        sources=[TableSource(section="A real language model answers questions")],
        rows={
            "the eight generators of training, mean": "",
            "products": "the eight generators of training, mean: products",
            "family_relationships": "the eight generators of training, mean: family",
            "letter_counting": "the eight generators of training, mean: letter",
            "aiw": "the eight generators of training, mean: aiw",
            "basic_arithmetic": "the eight generators of training, mean: basic",
            "gcd": "the eight generators of training, mean: gcd",
            "number_sequence": "the eight generators of training, mean: number",
            "chain_sum": "the eight generators of training, mean: chain",
            "the sixteen others, mean": "",
        },
        sets=TRAINED,
    ),
    *(
        CellMatrix(
            name=f"reasoning_transfer_{name}",
            title=f"Right answers by generator of training (row), {words}: change",
            label="percentage points",
            sources=[TableSource(section="One generator at a time", table=table)],
            columns=["letter_counting", "family_relationships", "number_sequence"],
        )
        for table, (name, words) in enumerate(
            {
                "uncorrected": "without a correction",
                "corrected": "with weighted samples",
            }.items()
        )
    ),
]

MEMORIES: list[TablePicture] = [
    SeedDots(
        name="memory",
        title="Memory-R1: trained and untrained agents together",
        label=MATCH,
        sources=[TableSource(section="Memory-R1", table=1)],
        rows={
            "manager and answer agent trained": "trained, trained",
            "manager trained": "trained, untrained",
            "answer agent trained": "untrained, trained",
            "both untrained": "untrained, untrained",
        },
        sets={"seeds": SeedValues(columns=SEED)},
    ),
    SeedDots(
        name="memory_extractor",
        title="Memory-R1 with a fact extractor",
        label=PERCENT_OF_QUESTIONS,
        sources=[TableSource(section="Memory-R1", table=2)],
        rows={
            "exact match, all three learn": "all three learn",
            "exact match, the extractor is frozen": "the extractor is frozen",
            "fact among the memories shown, all three learn": "the fact is among",
            "fact among the memories shown, the extractor is frozen": "the same",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="memory_reflector",
        title="RMM's retrospective reflection: a reflector paid by citations does harm",
        label=MATCH,
        sources=[TableSource(section="Memory-R1", table=3)],
        rows=[
            "with a reflector, paid by citations",
            "with a reflector, paid by the outcome",
            "without, two entries",
        ],
        sets=TRAINED,
    ),
    SeedDots(
        name="memory_summarizer",
        title="RMM's prospective reflection: summaries against single sentences",
        label=PERCENT_OF_QUESTIONS,
        sources=[TableSource(section="Memory-R1", table=4)],
        rows={
            "exact match with summaries": "",
            "exact match of the control": "",
            "fact among the memories shown, with summaries": "the fact is among",
            "fact among the memories shown, control": "the same, control",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="memory_rmm",
        title="Both reflections of RMM together, and each alone",
        label=MATCH,
        sources=[TableSource(section="Memory-R1", table=5)],
        sets=TRAINED,
    ),
    SeedDots(
        name="long_text",
        title="A text of any length: trained on texts of four parts",
        label=RIGHT,
        sources=[TableSource(section="A text of any length")],
        rows={
            "4 parts": "",
            "8 parts": "",
            "16 parts": "",
            "32 parts": "",
            "4 parts, the answer's turn alone": "4 parts, learning",
            "32 parts, the answer's turn alone": "32 parts, the same",
        },
        sets=TRAINED,
    ),
]

SEARCHES: list[TablePicture] = [
    SeedDots(
        name="tools",
        title="Tools are called where they pay",
        label=RIGHT,
        sources=[TableSource(section="Tools are called where they pay")],
        rows={
            "no price: all questions": "no price: right answers",
            "no price: easy": "no price: right answers: easy",
            "no price: hard": "no price: right answers: hard",
            "price and KL: all questions": "price 0.3 and KL: right answers",
            "price and KL: easy": "price 0.3 and KL: right answers: easy",
            "price and KL: hard": "price 0.3 and KL: right answers: hard",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="tools_calls",
        title="Tools are called where they pay: calls of the calculator",
        label="calls per question",
        sources=[TableSource(section="Tools are called where they pay")],
        rows={
            "no price: all questions": "no price: calls per question",
            "price and KL: all questions": "price 0.3 and KL: calls per question",
            "price and KL: easy": "price 0.3 and KL: calls per question: easy",
            "price and KL: hard": "price 0.3 and KL: calls per question: hard",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="search",
        title="A small corpus is searched",
        label=RIGHT,
        sources=[TableSource(section="A small corpus is searched")],
        rows={
            "all questions": "right answers",
            "one fact": "right answers: one",
            "two facts": "right answers: two",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="spice",
        title="SPICE: a proposer that learns does not help the solvers",
        label=RIGHT,
        sources=[TableSource(section="Questions about documents")],
        rows={
            "before training": "right answers before",
            "the proposer learns": "after, the proposer learns",
            "frozen proposer": "after, frozen proposer",
            "given questions": "after, given questions",
        },
        sets={"seeds": SeedValues(columns=SEED)},
    ),
    SeedDots(
        name="search_self_play",
        title="Search self-play: a proposer that learns is not shown to help the solvers",
        label=RIGHT,
        sources=[TableSource(section="Questions about documents", table=1)],
        sets=TRAINED,
    ),
    SeedDots(
        name="cited_search",
        title="Pay for right citations",
        label="% of the answers or of the citations",
        sources=[TableSource(section="Questions about documents", table=2)],
        rows={
            "right": "",
            "right, without the pay": "right: without",
            "right, with a right citation": "",
            "right, with a right citation, without the pay": "right, with a right citation: ",
            "citations that are right": "",
            "citations that are right, without the pay": "citations that are right: ",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="zero_search",
        title="ZeroSearch: accuracy with the simulator and with the real search",
        label=RIGHT,
        sources=[TableSource(section="Search without a search engine")],
        rows={
            "fixed simulator: real search": "fixed simulator: right answers, real search",
            "fixed simulator: simulator": f"fixed simulator: {SIMULATED}",
            "cooperative: real search": "simulator learns, cooperative",
            "cooperative: simulator": f"simulator learns, cooperative: {SIMULATED}",
            "opposed: real search": "simulator learns, opposed",
            "opposed: simulator": f"simulator learns, opposed: {SIMULATED}",
        },
        sets=TRAINED,
    ),
    SeedDots(
        name="desk",
        title="The service desk: success and rules",
        label="% of the held-out tasks of each kind",
        sources=[TableSource(section="The service desk")],
        rows=["success", "violated", "refused rightly", "refused wrongly"],
        sets=TRAINED,
    ),
    SeedDots(
        name="desk_customer",
        title="A customer that learns: success of the pair",
        label="success, % of the conversations",
        sources=[TableSource(section="A customer that learns")],
        sets=TRAINED,
    ),
    SeedDots(
        name="desk_adversary",
        title="A customer that learns to make the agent break rules",
        label="violations, % of the conversations",
        sources=[TableSource(section="A customer that learns", table=1)],
        sets=TRAINED,
    ),
]

LANGUAGE_PICTURES = [*SMOLLM2, *MEMORIES, *SEARCHES]
