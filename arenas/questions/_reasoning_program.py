"""Program that runs the package `reasoning_gym` inside the sandbox; only its text is used outside.

The package evaluates text as Python: some of its verifiers call `eval` on the answer that they
score, others give it to sympy, which does the same. So questions are made and answers are scored in
the sandbox's isolated processes. Everything that passes is plain data. This module is private, so
that no config of a run folder can name its functions.
"""

import ast
from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b
from typing import Any

HELD_OUT_PER = 5
"""One question in this number is held out."""
LONGEST_ENTRY = 60_000
"""Largest number of characters of an entry and of its question; longer ones are left out."""


def is_held_out(question: str) -> bool:
    """Return True for one question in five, chosen by a hash of its text."""
    digest = blake2b(question.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_PER == 0


def names() -> list[str]:
    """Return the names of all generators but the composite of several."""
    from reasoning_gym.factory import DATASETS

    return sorted(name for name in DATASETS if name != "composite")


def levels(name: str) -> int:
    """Return the number of difficulty levels of a generator; 1 if it has no curriculum."""
    from reasoning_gym.factory import CURRICULA, create_curriculum

    if name not in CURRICULA:
        return 1
    attributes = create_curriculum(name).attributes.values()
    return max((len(attribute.levels) for attribute in attributes), default=1)


def draw(
    name: str,
    level: int | None,
    settings: Mapping[str, Any],
    seed: int,
    size: int,
    count: int,
    held_out: bool,
) -> list[tuple[str, str | None, str]]:
    """Return up to `count` different questions of a split, from the `size` seeds after `seed`.

    Each is its text, its answer (None if the generator gives none) and its entry: the text of a
    literal with the answer, the metadata and the configuration.
    """
    from reasoning_gym.factory import DATASETS

    config = configured(name, level, {**settings, "seed": seed, "size": size})
    dataset = DATASETS[name][0](config)
    given = {each.name: getattr(config, each.name) for each in fields(config) if each.init}
    # Fields of other types keep their defaults: no plain setting can have changed them.
    known = plain({name: value for name, value in given.items() if is_plain(value)})
    found: dict[str, tuple[str, str | None, str]] = {}
    for index in range(size):
        if len(found) == count:
            break
        made = dataset[index]
        question, answer = str(made["question"]), made["answer"]
        if is_held_out(question) != held_out or question in found:
            continue
        entry = repr({"answer": answer, "metadata": plain(made["metadata"]), "config": known})
        if len(entry) + len(question) <= LONGEST_ENTRY:
            found[question] = (question, answer, entry)
    return list(found.values())


def configured(name: str, level: int | None, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a level of the package's curriculum, changed by `settings`."""
    from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

    values: dict[str, Any] = {}
    if level is not None and name in CURRICULA:
        curriculum = create_curriculum(name)
        curriculum.set_global_level(level)
        made = curriculum.generate_configuration()
        values = {each.name: getattr(made, each.name) for each in fields(made) if each.init}
    return DATASETS[name][1](**{**values, **settings})


def is_plain(value: Any) -> bool:
    """Return True for numbers, texts, None, and lists, tuples, sets and dictionaries of these."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def plain(value: Any) -> Any:
    """Return a value as numbers, texts, None, lists, tuples, sets and dictionaries."""
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(plain(each) for each in value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "item"):  # a number or an array of numpy
        return plain(value.tolist())
    return str(value)


def score(name: str, question: str, entry: str, answer: str) -> float:
    """Return the package's score of an answer."""
    from reasoning_gym.factory import DATASETS

    known = ast.literal_eval(entry)
    whole = {"question": question, "answer": known["answer"], "metadata": known["metadata"]}
    dataset_class, config_class = DATASETS[name]
    config = config_class(**known["config"])
    # Most verifiers need no more than the configuration, and some datasets load large files. A
    # verifier may swallow the error of a missing attribute, so that only the list shows it.
    missing: list[str] = []

    def note(dataset: Any, attribute: str) -> Any:
        missing.append(attribute)
        raise AttributeError(attribute)

    light: Any = type("Light", (dataset_class,), {"__getattr__": note})
    dataset = object.__new__(light)
    dataset.config = config
    try:
        found = float(dataset.score_answer(answer, whole))
    except AttributeError:
        if not missing:
            raise
    if missing:
        return float(dataset_class(config).score_answer(answer, whole))
    return found
