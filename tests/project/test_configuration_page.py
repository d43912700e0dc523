"""Tests of the generator of docs/configuration.md, which takes texts from docstrings."""

import sys
from inspect import cleandoc

from tests.helpers.repository import ROOT
from tests.helpers.scripts import script

sys.path.insert(0, str(ROOT / "scripts"))
make_docs = script("make_docs")
documentation = make_docs.documentation


def test_an_entry_of_several_names_documents_each_of_them() -> None:
    text = cleandoc(
        """Args:
            forbidden: Ids of questions.
            question_length, answer_length: Maximum characters;
                longer: texts are invalid.
            pay: spread: the variance.

        Raises ValueError for others.
        """
    )
    both = "Maximum characters;\n    longer: texts are invalid."
    assert documentation(text) == {
        "forbidden": "Ids of questions.",
        "question_length": both,
        "answer_length": both,
        "pay": "spread: the variance.",
    }


def test_entries_may_be_at_the_margin_or_below_a_summary() -> None:
    expected = {"a": "One.", "b": "Two."}
    assert documentation("Args:\na: One.\nb: Two.") == expected
    assert documentation("Sum.\n\nArgs:\n    a: One.\n    b: Two.\nReturns:\n    c: d.") == expected
    assert documentation("`a` is one.") == {"a": "one."}


def test_a_text_is_no_column_and_no_link() -> None:
    assert make_docs.cell("a|b  of\n[0][2]") == r"a\|b of [0]\[2]"


def test_a_credit_method_has_its_formula_without_markup() -> None:
    page = make_docs.page()
    section = page.partition("\n`selfplay.credit.gigpo.GiGPO`\n")[2].partition("\n| key |")[0]
    assert section.strip().startswith("A = A_episode + weight \\* A_step (2505.10978).")
    assert "Failure mode: " in section and 'and `group_by="agent"`' in section
    assert "Args:" not in section
    assert "sum over k &lt; t of" in page and "\\<" not in page


def test_parameters_that_the_program_fills_in_are_not_required() -> None:
    page = make_docs.page()

    def row(target: str, key: str) -> str:
        rows = page.partition(f"\n`{target}`\n")[2].partition("\n\n`")[0].splitlines()
        (found,) = [each for each in rows if each.startswith(f"| `{key}` |")]
        return str(found)

    assert "| provided |" in row("selfplay.credit.counterfactual.Counterfactual", "arena")
    assert "| provided |" in row("selfplay.league.config.LeagueConfig", "population")
    assert "| service |" in row("arenas.collaboration.arena.Collaboration", "executor")
    assert "| required |" in row("arenas.games.random_play.RandomPlay", "arena")
    assert "| required |" in row("selfplay.credit.shaping.Overlong", "buffer")  # a number
    # No service is given to a warm start.
    target = "arenas.questions.reasoning_answers.ReasoningAnswers"
    assert "| required |" in row(target, "reasoning_gym")


def test_every_key_has_a_meaning_and_one_row() -> None:
    for table in make_docs.page().split("| key | type | default | meaning |")[1:]:
        rows = [line for line in table.partition("\n\n")[0].splitlines() if line.startswith("| `")]
        assert not [row for row in rows if row.endswith("|  |")]
        keys = [row.split("`")[1] for row in rows]
        assert len(set(keys)) == len(keys)
