"""Tests of untrusted templates: each is rendered, or gives a one-line error."""

import threading
import time
from typing import Any

import pytest
from jinja2 import TemplateError

from selfplay.errors import ConfigError
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_tokenizer
from selfplay.role import Role
from selfplay.sandbox import templates as module
from selfplay.sandbox.templates import bounded, check_template
from selfplay.types import Observation

NESTED = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
RECURSIVE = (
    "{% macro again(n) %}{% if n %}{{ again(n - 1) }}{{ again(n - 1) }}{% endif %}{% endmacro %}"
    "{{ again(60) }}"
)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.5)
    monkeypatch.setattr(module, "TICK", 0.05)


@pytest.mark.parametrize("template", [NESTED, RECURSIVE])
def test_an_endless_role_template_is_one_line(template: str) -> None:
    with pytest.raises(ConfigError, match=r"Role: template cannot render: .* more than 0\.5 s"):
        Role(template=template).prompt(Observation(text="x"))


@pytest.mark.parametrize("template", [NESTED, RECURSIVE])
def test_an_endless_chat_template_is_one_line(template: str) -> None:
    tokenizer: Any = build_tokenizer(())
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=r"policy 'p': its chat template .*may be endless"):
        ChatRenderer(tokenizer, where="policy 'p'")


def test_a_power_is_refused_before_anything_is_rendered() -> None:
    with pytest.raises(ConfigError, match=r"line 2 of its template uses \*\*"):
        check_template("{# 2**3 #} 2**3\n{{ 9 ** 9 ** 9 }}", where="x")
    check_template("{# 2**3 #} 2**3 {{ 2 * 3 }} {{ '**' }} {% broken", where="x")


def test_a_role_template_cannot_change_the_observation() -> None:
    fields = {"moves": ["a"], "table": {"a": 1}}
    for template in ("{{ moves.append('b') }}", "{{ table.update({'b': 2}) }}"):
        with pytest.raises(ConfigError, match="template cannot render"):
            Role(template=template).prompt(Observation(text="x", fields=fields))
    assert fields == {"moves": ["a"], "table": {"a": 1}}


def test_each_thread_is_stopped_by_its_own_processor_time() -> None:
    results: dict[str, str] = {}

    def work(name: str, seconds: float) -> None:
        def busy() -> str:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
            return "done"

        try:
            results[name] = bounded(busy, seconds=0.4)
        except TemplateError:
            results[name] = "stopped"

    threads = [
        threading.Thread(target=work, args=(name, seconds))
        for name, seconds in (("short", 0.1), ("long", 60.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {"short": "done", "long": "stopped"}


def test_waiting_costs_no_processor_time() -> None:
    assert bounded(lambda: time.sleep(0.6) or "done", seconds=0.2) == "done"  # type: ignore[func-returns-value]
