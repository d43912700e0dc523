"""Program that reads a taskset of the library `verifiers` and scores answers to its tasks.

It runs in a process of its own, with the interpreter that has `verifiers` and the taskset, so it
imports nothing of this project. Its input and output are lines of JSON. The first line of input has
the settings. Each later line is a request and has one line of output: an object with the result,
or with `error`, a text. This module is private, so that no config of a run folder can name its
functions.
"""

import asyncio
import inspect
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

PAGE = 200
"""Largest number of tasks in one reply."""


class TasksetReader:
    """The taskset, with the tasks that have been read so far."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Args:
        settings: `id`, the taskset's; `config`, its own settings; `runtime`, None or "subprocess".
        """
        import verifiers.v1 as vf

        name = settings["id"]
        data = {**settings["config"], "id": name}
        config = vf.taskset_config_type(name).model_validate(data)
        self.taskset = vf.load_taskset(config)
        self.task_type = self.taskset.task_type()
        self.config = config.task
        self.runtime = settings["runtime"]
        self._loop = asyncio.Runner()
        self._check_class()
        self._read: list[Any] = []
        self._unread: Iterator[Any] = iter(self.taskset)

    def _check_class(self) -> None:
        """Raise ValueError if the tasks need what an arena of questions does not have."""
        kind = self.task_type
        if kind.NEEDS_CONTAINER:
            raise ValueError("its tasks need a container")
        if kind.toolsets(self.config) or self.taskset.toolsets(self.taskset.config):
            raise ValueError("its tasks have tools")

    def tasks(self, start: int) -> dict[str, Any]:
        """Return a page of tasks, each its question and its data, and whether it is the last."""
        while len(self._read) < start + PAGE:
            task = next(self._unread, None)
            if task is None:
                break
            self._check(task)
            self._read.append(task)
        page = self._read[start : start + PAGE]
        found = [
            {
                "question": "\n\n".join(text for _, text in conversation(task.data)),
                "data": task.data.model_dump(mode="json", exclude_defaults=True),
            }
            for task in page
        ]
        return {"tasks": found, "last": len(page) < PAGE}

    def _check(self, task: Any) -> None:
        """Raise ValueError for a task whose answers cannot be scored."""
        where = f"task {len(self._read)}"
        if type(task) is not self.task_type:
            raise ValueError(
                f"{where} has the type {type(task).__name__}, and the taskset names "
                f"{self.task_type.__name__}"
            )
        if task.config != self.config:
            raise ValueError(f"{where} has settings of its own, apart from the taskset's")
        if task.data.image:
            raise ValueError(f"{where} needs a container")
        if not conversation(task.data):
            raise ValueError(f"{where} has no prompt")
        if self._read:
            return  # the hooks belong to the class
        rewards = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
        if not rewards:
            raise ValueError(f"{where} has no reward")
        needing = sorted(reward.__name__ for reward in rewards if needs_runtime(reward))
        if needing and self.runtime is None:
            raise ValueError(
                f"its reward {needing[0]} needs a runtime; with services.taskset.runtime="
                "subprocess the taskset may run programs on this machine, without isolation"
            )

    def score(self, data: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """Return the sum of the rewards for an answer, each with its weight."""
        return {"reward": self._loop.run(self._score(data, answer))}

    async def _score(self, data: Mapping[str, Any], answer: str) -> float:
        task = self.task_type(self.task_type.data_type().model_validate(data), self.config)
        trace = trace_of(task, answer)
        if self.runtime is None:
            await task.score(trace)
        else:
            await in_runtime(task, trace)
        total = float(trace.reward)
        if not math.isfinite(total):
            raise ValueError(f"the reward is {total}")
        return total


def conversation(data: Any) -> list[tuple[str, str]]:
    """Return the roles and texts before an answer; raises ValueError for other than texts."""
    said = [("system", data.system_prompt)] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*said, ("user", data.prompt)]
    for message in data.prompt or []:
        if message.role not in ("system", "user"):
            raise ValueError(f"its prompts have messages of the role {message.role}")
        content = message.content
        parts = (
            [("text", content)]
            if isinstance(content, str)
            else [(part.type, getattr(part, "text", "")) for part in content]
        )
        if any(kind != "text" for kind, _ in parts):
            raise ValueError("its prompts have images")
        said.append((message.role, "\n".join(text for _, text in parts)))
    return said


def needs_runtime(reward: Any) -> bool:
    """Return True for a reward that cannot be computed from the conversation alone."""
    given = inspect.signature(reward).parameters.get("runtime")
    return given is not None and given.default is inspect.Parameter.empty


def trace_of(task: Any, answer: str) -> Any:
    """Return the record of a conversation that ends with the answer."""
    import verifiers.v1 as vf

    kinds: dict[str, Any] = {"system": vf.SystemMessage, "user": vf.UserMessage}
    said = conversation(task.data)
    nodes = [
        vf.MessageNode(parent=number - 1 if number else None, message=kinds[role](content=text))
        for number, (role, text) in enumerate(said)
    ]
    reply = vf.AssistantMessage(content=answer)
    nodes.append(vf.MessageNode(parent=len(said) - 1, message=reply, sampled=True))
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )


async def in_runtime(task: Any, trace: Any) -> None:
    """Score the record with a folder and processes of this machine, as after a rollout."""
    import verifiers.v1 as vf
    from verifiers.v1.runtimes import provision_runtime
    from verifiers.v1.utils.decorators import invoke

    async with provision_runtime(vf.SubprocessConfig(), name=trace.id) as runtime:
        given = {"trace": trace, "runtime": runtime}
        await invoke(task.setup, given)
        await invoke(task.finalize, given)
        await task.score(trace, runtime)


def described(error: BaseException) -> str:
    """Return an error in one line, with the one that caused it."""
    cause = error.__cause__ or error
    return " ".join(f"{type(cause).__name__}: {cause}".split())[:500]


def main() -> None:
    """Answer requests until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the taskset prints is no reply
    reader: TasksetReader | None = None
    for line in sys.stdin:
        reply: dict[str, Any]
        try:
            request = json.loads(line)
            if reader is None:
                reader, reply = TasksetReader(request), {}
            elif "answer" in request:
                reply = reader.score(request["data"], request["answer"])
            else:
                reply = reader.tasks(request["start"])
        except Exception as error:  # code of the taskset can raise anything
            reply = {"error": described(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
