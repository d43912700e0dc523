"""A stand-in for the library verifiers, with the interface that `selfplay` uses, and tasksets.

`install` writes it into a folder from which new Python processes import. If the real library is
installed, `test_taskset_library.py` tests it.
"""

import os
from pathlib import Path

import pytest

LIBRARY = """
import importlib
import inspect
from typing import Annotated, Literal

from pydantic import BaseModel, Field


class TaskConfig(BaseModel, extra="forbid"):
    pass


class TasksetConfig(BaseModel, extra="forbid"):
    id: str = ""
    task: TaskConfig = TaskConfig()


class Part(BaseModel):
    type: str
    text: str = ""


class SystemMessage(BaseModel):
    role: Literal["system"] = "system"
    content: str | list[Part]


class UserMessage(BaseModel):
    role: Literal["user"] = "user"
    content: str | list[Part]


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | list[Part]


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage, Field(discriminator="role")
]


class TaskData(BaseModel):
    idx: int | None = None
    prompt: str | list[Message] | None = None
    system_prompt: str | None = None
    image: str | None = None


def reward(weight=1.0):
    def mark(function):
        function.weight = weight
        return function
    return mark


def needs(function):
    found = inspect.signature(function).parameters.get("runtime")
    return found is not None and found.default is inspect.Parameter.empty


class Task:
    NEEDS_CONTAINER = False
    data_class = TaskData

    def __init__(self, data, config):
        self.data, self.config = data, config

    key = hash = "key"

    @classmethod
    def data_type(cls):
        return cls.data_class

    @classmethod
    def toolsets(cls, config):
        return []

    def hooks(self, kind):
        names = [name for name in dir(type(self)) if hasattr(getattr(type(self), name), "weight")]
        return [getattr(self, name) for name in sorted(names)]

    def plugged_judges(self):
        return []

    def runtime_env(self):
        return {"added": "0"}

    async def setup(self, runtime):
        pass

    async def finalize(self, runtime):
        pass

    async def score(self, trace, runtime=None):
        for hook in self.hooks("reward"):
            given = {"trace": trace} | ({"runtime": runtime} if needs(hook) else {})
            trace.reward += hook.weight * await hook(**given)


class Taskset:
    bounded = True
    task_class = Task
    config_class = TasksetConfig

    def __init__(self, config):
        self.config = config

    @classmethod
    def task_type(cls):
        return cls.task_class

    @classmethod
    def toolsets(cls, config):
        return []

    def __iter__(self):
        for number, task in enumerate(self.load()):
            task.data.idx = number
            yield task


def _module(name):
    return importlib.import_module(name.replace("-", "_"))


def taskset_config_type(name):
    return _module(name).TASKSET.config_class


def load_taskset(config):
    return _module(config.id).TASKSET(config)


class MessageNode(BaseModel):
    parent: int | None
    message: Message
    sampled: bool = False


class Plain:
    def __init__(self, **settings):
        vars(self).update(settings)


class TraceTask(Plain):
    pass


class AgentConfig(Plain):
    pass


class AgentInfo(Plain):
    pass


class SubprocessConfig(Plain):
    pass


class Trace(Plain):
    id, reward = "id", 0.0

    @property
    def last_reply(self):
        assert [node.parent for node in self.nodes] == [None, *range(len(self.nodes) - 1)]
        assert self.nodes[-1].sampled and self.nodes[-1].message.role == "assistant"
        return self.nodes[-1].message.content
"""
RUNTIMES = """
from contextlib import asynccontextmanager


class Folder:
    def __init__(self, env):
        self.env = env

    async def run(self, words):
        return sum(map(int, [*words, self.env["added"]]))


@asynccontextmanager
async def provision_runtime(config, name, env):
    yield Folder(env)
"""
STATE = """
def state_cls(task_class):
    return getattr(task_class, "state_class", dict)
"""
DECORATORS = """
import inspect


def discover_decorated(task, name):
    return [key for key in dir(task) if hasattr(getattr(type(task), key, None), name)]


def invoke(function, available):
    names = inspect.signature(function).parameters
    return function(**{name: available[name] for name in names})
"""
SUMS = '''
import asyncio
import itertools
import os
import sys
import time

import verifiers.v1 as vf
from pydantic import Field

print("this line of the taskset is no reply")


class Config(vf.TasksetConfig):
    count: int = 450
    kind: str = "sums"


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task):
    data_class = Data

    @vf.reward(weight=0.9)
    async def right(self, trace):
        reply = trace.last_reply
        if reply == "raise":
            raise KeyError("what the reply named")
        if reply == "sleep":
            await asyncio.sleep(60)
        if reply == "block":
            time.sleep(60)
        if reply == "read":
            return float(sys.stdin.read() == "")
        if reply == "pause":
            time.sleep(0.3)
        if reply == "talk":
            sys.stderr.write("x" * 3_000_000)
        if reply == "exit":
            os._exit(7)
        if reply == "nan":
            return float("nan")
        if reply == "large":
            return 5.0
        await asyncio.sleep(0)
        return float(reply == self.data.answer)

    @vf.reward(weight=-0.1)
    async def long(self, trace):
        return float(len(trace.last_reply) > 9)


class Run(Sum):
    """Its reward needs a place where programs run."""

    @vf.reward(weight=1.0)
    async def right(self, trace, runtime):
        words = self.data.prompt.removesuffix(" =").split(" + ")
        return float(str(await runtime.run(words)) == trace.last_reply)


class Contained(Sum):
    NEEDS_CONTAINER = True


class Tooled(Sum):
    @classmethod
    def toolsets(cls, config):
        return ["search"]


class Unpaid(vf.Task):
    data_class = Data


class Prepared(Sum):
    """It counts on a method before its rewards."""

    async def finalize(self, runtime):
        pass


class Changing(Sum):
    def change(self, request):
        return request

    change.intercept = True


class Remembering(Sum):
    """It keeps more than its data."""

    def __init__(self, data, config, tests=()):
        super().__init__(data, config)
        self.tests = tests


class Hits:
    hits = 0


class Stateful(Sum):
    state_class = Hits

    @vf.reward(weight=1.0)
    async def right(self, trace):
        trace.state.hits += 1
        return float(trace.state.hits == 1)


class Hidden(Data):
    answer: str = Field(exclude=True, default="none")


class Hiding(Sum):
    data_class = Hidden


KINDS = {
    "run": Run, "contained": Contained, "tooled": Tooled, "unpaid": Unpaid, "prepared": Prepared,
    "changing": Changing, "remembering": Remembering, "stateful": Stateful, "hiding": Hiding,
}
PROMPTS = {
    "silent": None,
    "seen": [vf.UserMessage(content=[vf.Part(type="image_url")])],
    "shown": [vf.UserMessage(content="1 + 1 ="), vf.AssistantMessage(content="2")],
    "parts": [
        vf.SystemMessage(content="Add."),
        vf.UserMessage(content=[vf.Part(type="text", text="1 + 2 =")]),
    ],
}


class Sums(vf.Taskset):
    config_class = Config

    @classmethod
    def task_type(cls):
        return cls.kind

    def __init__(self, config):
        super().__init__(config)
        type(self).kind = KINDS.get(config.kind, Sum)

    @property
    def bounded(self):
        return self.config.kind != "endless"

    def load(self):
        for number in itertools.count() if not self.bounded else range(self.config.count):
            if self.config.kind == "failing" and number == 5:
                raise OSError("download failed")
            text = f"{number} + {number % 7} ="
            prompt = PROMPTS.get(self.config.kind, text)
            image = "ubuntu" if self.config.kind == "boxed" else None
            answer = str(number + number % 7)
            data = self.kind.data_class(prompt=prompt, answer=answer, image=image)
            more = {"tests": ["1"]} if self.config.kind == "remembering" else {}
            yield self.kind(data, self.config.task, **more)


TASKSET = Sums
'''


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the library and the taskset `sums`, and let new processes import them."""
    package = folder / "verifiers"
    for place, text in {
        "__init__.py": "",
        "v1/__init__.py": LIBRARY,
        "v1/runtimes.py": RUNTIMES,
        "v1/state.py": STATE,
        "v1/utils/__init__.py": "",
        "v1/utils/decorators.py": DECORATORS,
    }.items():
        file = package / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "sums.py").write_text(SUMS)
    (folder / "broken.py").write_text("raise RuntimeError('no data\\nhere')")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [before])]))
