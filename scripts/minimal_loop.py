"""Self-play training in one page, without config files and without the command line.

The game: two agents who cannot talk to each other each choose a place on a given day, and are paid
if they meet. The rules do not say where; the agents have to learn a convention. One model with
random weights plays both agents, so that at first it does not even name places. Run it with:

    python scripts/minimal_loop.py

The loop is that of `selfplay train`, where a config chooses each of these parts:

    arena, roles, engine -> Rollout -> episodes -> Credit -> samples -> Learner -> weights -> engine
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from selfplay import (
    AgentSpec,
    Arena,
    EpisodeSpec,
    Group,
    InvalidAction,
    Learner,
    LearnerSettings,
    Observation,
    PolicyLoss,
    Role,
    Rollout,
    Task,
)
from selfplay.credit.grpo import GRPO
from selfplay.engines.transformers import TransformersEngine
from selfplay.models.renderer import ChatRenderer
from selfplay.models.tiny import build_model, build_tokenizer

PLACES = ("cafe", "park", "bridge")
DAYS = ("Monday", "Friday", "Sunday")


class Meeting(Arena):
    """An arena holds the rules: who acts, what each agent sees, and what is paid."""

    name = "meeting_v0"
    roles = {"friend": 2}  # the agents are friend_0 and friend_1

    def setup(self, task: Task, rng: Random) -> None:
        self.day = task.payload["day"]

    def acting(self) -> Sequence[str]:
        return self.possible_agents  # both at once: neither sees the other's move

    def view(self, agent: str) -> Observation:
        return Observation(text=self.day)

    def advance(self, actions: Mapping[str, str | None]) -> None:
        places = list(actions.values())
        for agent, place in actions.items():
            met = place is not None and places.count(place) == 2
            self.pay(agent, 1.0 if met else 0.0 if place else -1.0)
        self.finish()


class Friend(Role):
    """A role is a prompt template and a parser: how a model sees a view and how it acts."""

    template = "{{ text }}"

    def parse(self, text: str) -> str:
        if text not in PLACES:
            raise InvalidAction("no_place")  # the arena then gets None
        return text


def train(steps: int = 30, *, group_size: int = 32, seed: int = 0) -> Iterator[float]:
    """Train one policy that plays both agents; yield the mean reward of an agent per step."""
    # A policy is a model and a renderer, which turns chat messages into tokens and back.
    tokenizer = build_tokenizer([*PLACES, *DAYS])
    renderer = ChatRenderer(tokenizer)
    model = build_model(len(tokenizer), seed=seed)

    # Playing: the engine samples completions; the rollout plays many episodes at once.
    engine = TransformersEngine()
    engine.serve("base", model, renderer.end_ids)
    friend = AgentSpec(role=Friend(), policy="base", renderer=renderer, max_tokens=1)
    rollout = Rollout(arena=Meeting, agent_specs={"friend": friend}, engines={"base": engine})

    # Learning: credit turns rewards into advantages; the learner turns them into new weights.
    credit = GRPO(group_by="agent")
    learner = Learner(model, objective=PolicyLoss(), settings=LearnerSettings(lr=3e-3))

    tasks = [Task(id=day, payload={"day": day}) for day in DAYS]
    for step in range(1, steps + 1):
        # Each task is played several times: a group, whose episodes GRPO compares.
        groups = []
        for task in tasks:
            specs = [EpisodeSpec(task=task, seed=step, member=i) for i in range(group_size)]
            groups.append(Group(id=task.id, episodes=tuple(rollout.run(specs))))

        samples = credit.assign(groups)  # one sample per turn, with its advantage
        learner.update(samples, step=step)
        engine.publish("base", learner.weights(), version=step)

        rewards = [sample.turn.reward for sample in samples]
        yield sum(rewards) / len(rewards)


if __name__ == "__main__":
    for step, reward in enumerate(train(), start=1):
        print(f"step {step:2}: mean reward {reward:+.2f}")
