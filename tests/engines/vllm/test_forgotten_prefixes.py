"""Test that a rollout reads no prefixes that vLLM cached in earlier ones, without vLLM itself."""

from types import SimpleNamespace
from typing import Any

from selfplay.engines.vllm.engine import VLLMEngine
from selfplay.engines.vllm.served_policies import ServedPolicies, ServedPolicy
from tests.helpers.vllm_engine import make


def test_a_rollout_reads_no_prefixes_of_earlier_rollouts() -> None:
    host: Any = SimpleNamespace(idle=False)
    group = ServedPolicies(host, rank=None)
    group.all = [ServedPolicy(name, make(layers=1), [], tolerance=1.0) for name in "pq"]
    for served in group.all:
        served.renew_salt()
    engine = VLLMEngine.__new__(VLLMEngine)
    engine._groups = {"shape": group}
    before = {served.policy: served.salt for served in group.all}
    engine.forget()
    after = {served.policy: served.salt for served in group.all}
    assert len({*before.values(), *after.values()}) == 4
    for served in group.all:
        served.folder.cleanup()
