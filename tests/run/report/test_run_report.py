"""Tests of the run report: it is complete and self-contained, and no model text is markup."""

import html
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from selfplay.errors import RunError
from selfplay.run.declarations import ArenaMetrics, RunMetrics
from selfplay.run.record_reader import Summary, read_metrics
from selfplay.run.report.html import visible
from selfplay.run.report.run_report import _with_ends, compare, write_report
from selfplay.types import Metric
from tests.helpers.recorded_run import HOSTILE, make_run


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "zero")


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_headline_curves_transcripts_config_and_command_are_all_there(
    run: Path, page: Page
) -> None:
    for words in (
        "zero",
        "60 steps, 12 min 34 s",
        "12.4%",
        "66.1%",
        "+53.7 points",
        "held out greedy",
        "Evaluation accuracy",
        "Reward per role",
        "Turns whose action parsed",
        "Solve rate by task type",
        "Completion length, tokens",
        "Executor outcomes",
        "Seconds per step, by phase",
        "The first proposal that failed (proposer_0)",
        "No action: no_answer",
        "cut off",
        "Verdict: solver",
        "correct",
        "ExecutorError: the worker died",
        "arenas.absolute_zero.arena.AbsoluteZero",
        "selfplay train +experiment=absolute_zero name=zero seed=0",
        "torch 2.13.0",
        "15,360",
    ):
        assert words in page.text, words
    assert [tag for tag, _ in page.elements].count("svg") >= 15


def test_page_refers_to_nothing_outside_itself(run: Path, page: Page) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "://" not in text and "@import" not in text and "@font-face" not in text
    active = {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "a",
        "foreignobject",
    }
    assert not active & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "style")
        ]
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv"))
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    identifiers = [
        a["id"] for tag, a in page.elements if "id" in a and tag not in ("path", "clippath")
    ]
    assert len(identifiers) == len(set(identifiers))


def test_same_run_gives_the_same_bytes(run: Path, page: Page) -> None:
    before = (run / "report.html").read_bytes()
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_bytes() == before


def test_hostile_text_is_shown_and_is_never_markup(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<b>x", hostile=HOSTILE, steps=10)
    text = write_report(run).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "img", "b onload"} & {tag for tag, _ in page.elements}
    assert text.count("<style") == 1 and "49" not in re.findall(r"onload=\S+ (\S+)", text)
    assert html.escape("<script>document.title='owned'</script>", quote=False)[:14] in text
    assert "\u27e8U+202E\u27e9gnp.exe" in text and "\u27e8U+001B\u27e9[31m" in text
    assert not set(text) & set("\u202e\u202c\x1b\x00\ud800")


def test_hostile_metric_names_are_shown_as_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=3)
    name = "role/$\\frac{</svg><script>alert(1)</script>/_reward\x00"
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, name: 0.5, "lonely": 1}) + "\n")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "script" not in {tag for tag, _ in page.elements} and "Lonely" in page.text


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, selfplay.run.report.run_report; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_unfinished_run_reports_the_first_and_latest_evaluation(tmp_path: Path) -> None:
    run = make_run(tmp_path / "going", summary=False, steps=20)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 21, "role/solver/rew')
    with (run / "episodes" / "000020.jsonl").open("a") as lines:
        lines.write('{"group": "g0", "epis')
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert "not finished" in page.text and "First and latest evaluation" in page.text
    assert "recorded at its end" in page.text and "20 steps" in page.text


def test_run_that_has_done_nothing_yet(tmp_path: Path) -> None:
    run = tmp_path / "new"
    run.mkdir()
    (run / "config.yaml").write_text("name: new\n")
    page = Page(write_report(run).read_text(encoding="utf-8"))
    for words in ("No step is on record", "No episode is on record", "No evaluation is on record"):
        assert words in page.text


def test_config_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4)
    (run / "config.yaml").write_bytes(b"\xff")
    with pytest.raises(RunError) as caught:
        write_report(run)
    assert "config.yaml: is not UTF-8" in str(caught.value) and "\n" not in str(caught.value)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b'{"evaluations": {"a": {"before": 3}}}', "evaluations.a"),
    ],
)
def test_a_damaged_summary_is_one_line_of_the_page(
    tmp_path: Path, content: bytes, message: str
) -> None:
    run = make_run(tmp_path / "run", steps=4)
    (run / "summary.json").write_bytes(content)
    page = Page(write_report(run).read_text(encoding="utf-8")).text
    assert f"Left out a damaged file: summary.json: {message}" in page
    assert "not finished" not in page and "4 steps" in page
    assert "First and latest evaluation" in page


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "metrics.jsonl",
            b'{"step": 1}\nnonsense\n{"step": 3}\n',
            "Left out one damaged line: metrics.jsonl, line 2: not valid JSON",
        ),
        (
            "metrics.jsonl",
            b'{"step": 1}\n\xff\xff\n[1]\n',
            "Left out 2 damaged lines, the first is metrics.jsonl, line 2: not valid JSON",
        ),
        ("metrics.jsonl", b"[1]\n", "metrics.jsonl, line 1: expected a JSON object"),
        ("metrics.jsonl", b'{"loss": 1}\n', "metrics.jsonl, line 1: 'step' is missing"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "metrics.jsonl, line 1: not valid JSON"),
        (
            "episodes/000009.jsonl",
            b'{"advantages": []}\n',
            "damaged line: episodes/000009.jsonl, line 1: not a recorded",
        ),
    ],
)
def test_a_damaged_line_is_left_out_and_named(
    tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    run = make_run(tmp_path / "run", steps=4)
    (run / file).write_bytes(content)
    text = Page(write_report(run).read_text(encoding="utf-8")).text
    assert message in text and str(tmp_path) not in text
    if b'"step": 3' in content:
        assert "the curves omit them: 0, 2." in text, "the line after the damaged one is read"


def test_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        write_report(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match="is a folder, not a regular file"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_curves_begin_before_training_and_end_after_it(run: Path) -> None:
    rows = read_metrics(run / "metrics.jsonl")
    summary = Summary(steps=60, evaluations={"e": {"before": {"accuracy": 0.1}, "after": None}})
    assert _with_ends(rows, summary)[0] == {"evaluation/e/accuracy": 0.1}
    assert _with_ends(rows, summary)[60] == rows[60]


def test_steps_done_again_after_a_resume_count_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "a": 1}\n{"step": 1, "a": 5}\n{"step": 2, "a": NaN, "b": "x"}\n')
    rows = read_metrics(path)
    assert list(rows) == [1, 2] and math.isnan(rows[2]["a"]) and "b" not in rows[2]


ACCURACY = Metric(unit="fraction", better="higher")
FAULT = Metric(unit="fraction", better="lower")


def declared(chief: tuple[str, ...] = (), **metrics: Metric) -> RunMetrics:
    return RunMetrics(evaluations={"e": ArenaMetrics(metrics=metrics, chief=chief)})


def test_comparison_begins_with_all_tasks_and_signs_its_changes() -> None:
    values = {"before": {"b/accuracy": 0.5, "accuracy": 0.25}, "after": {"accuracy": 0.2}}
    lines = compare("e", values, declared(accuracy=ACCURACY))
    assert [(line.metric, line.change, line.direction) for line in lines] == [
        ("accuracy", "-5.0", "down"),
        ("b, accuracy", "-", "same"),
    ]
    assert compare("e", {"before": None, "after": None}, RunMetrics()) == []


def test_comparison_lists_overall_metrics_first_and_uses_directions() -> None:
    before = {"payoff": 0.1, "a/payoff": 0.1, "illegal_rate": 0.163, "failed_episodes": 0.0}
    after = {**before, "payoff": 0.2, "illegal_rate": 0.023}
    lines = compare("e", {"before": before, "after": after}, declared(illegal_rate=FAULT))
    assert [(line.metric, line.change, line.direction) for line in lines] == [
        ("payoff", "+0.100", "same"),
        ("illegal rate", "-14.0", "up"),  # lower is better
        ("failed episodes", "+0", "same"),
        ("a, payoff", "+0", "same"),
    ]


def test_the_only_type_of_task_is_not_shown_twice() -> None:
    values = {"accuracy": 0.5, "question/accuracy": 0.5}
    lines = compare("e", {"before": values, "after": values}, declared(chief=("accuracy",)))
    assert [line.metric for line in lines] == ["accuracy"]
    types = {**values, "proof/accuracy": 0.5}
    lines = compare("e", {"before": types, "after": None}, declared(chief=("accuracy",)))
    assert [line.metric for line in lines] == ["accuracy", "question, accuracy", "proof, accuracy"]


def test_the_headline_is_the_chief_metric_and_not_the_first() -> None:
    values = {"illegal": 0.1, "moves": 7.0, "versus/minimax/return": -0.5}
    ends = {"before": values, "after": values}
    lines = compare("e", ends, declared(chief=("versus/minimax/return",)))
    assert [line.metric for line in lines if line.chief] == ["versus, minimax, return"]
    assert lines[0].chief
    first = compare("e", ends, declared())  # without a chief metric: the first metric
    assert [line.metric for line in first if line.chief] == ["illegal"]


def test_won_drawn_and_lost_have_one_unit() -> None:
    values = {f"versus/random/{name}": 0.25 for name in ("won", "drawn", "lost", "return")}
    lines = compare("e", {"before": {}, "after": values}, RunMetrics())
    assert [line.after for line in lines] == ["25.0%", "25.0%", "25.0%", "0.250"]


def test_visible_does_not_change_ordinary_text() -> None:
    for text in ("plain\n\ttext", "\u00e9\u4e2d\u0639", "\U0001f469\u200d\U0001f52c"):
        assert visible(text) == text
    assert (
        visible("\u2066\x7f\r") == "\u27e8U+2066\u27e9\u27e8U+007F\u27e9\u27e8U+000D\u27e9"
        and visible(3) == 3
    )
