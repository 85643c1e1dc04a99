#!/usr/bin/env python3
"""A world as a stand-alone program: a house of lamps, driven by a table of transitions.

It speaks JSON lines on stdin and stdout and imports nothing but the standard library. `--broken HOW` makes it
misbehave, for tests of what is done about that.
"""

import json
import os
import random
import sys
import time

COLOURS = ["red", "green", "blue", "white", "amber", "violet"]
ANSWERED = "answered"

VERSION = os.environ.get("LAMPS", "lamps-2")
BROKEN = sys.argv[sys.argv.index("--broken") + 1] if "--broken" in sys.argv else ""

TOOLS = [
    {
        "name": "set_lamp",
        "description": "Switch a lamp.",
        "parameters": {
            "type": "object",
            "properties": {"lamp": {"type": "string"}, "on": {"type": "boolean"}},
            "required": ["lamp", "on"],
        },
    },
    {
        "name": "finish",
        "description": "Say that the job is done.",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
]
SPLITS = ("train", "golden", "hidden", "audit")


# --- the transitions of a house: (house, arguments) -> what the caller is told


def set_lamp(house, arguments):
    lamp, on = arguments["lamp"], arguments["on"]
    if lamp not in house["lamps"]:
        return {"data": {"error": "no such lamp"}, "is_error": True}
    changed = house["lamps"][lamp] != on
    house["lamps"][lamp] = on
    return {"data": {"ok": 1}, "changed": changed, "event": None if changed else "needless"}


def finish(house, arguments):
    house["phase"], house["answer"] = ANSWERED, str(arguments["answer"])
    return {"data": {"ok": 1}, "done": True, "answer": house["answer"]}


TABLE = {("working", "set_lamp"): set_lamp, ("working", "finish"): finish}


def step(house, call):
    move = TABLE.get((house["phase"], call["name"]))
    if move is None:
        return {"data": {"error": "not now"}, "is_error": True, "done": house["phase"] == ANSWERED}
    try:
        return move(house, call["arguments"])
    except (KeyError, TypeError):
        return {"data": {"error": "what?"}, "is_error": True}


def new_house(problem):
    return {"phase": "working", "answer": None, "lamps": dict(problem["world"]["lamps"])}


# --- problems


def draw(split, rng):
    job = rng.randrange(10_000, 99_999) * len(SPLITS) + SPLITS.index(split)
    lamps = {colour: rng.random() < 0.5 for colour in rng.sample(COLOURS, 3)}
    lamp = rng.choice(sorted(lamps))
    on = not lamps[lamp]
    word = "on" if on else "off"
    return {
        "id": f"lamps-{split}-{job}",
        "type": word,
        "text": f"Job {job}: switch the {lamp} lamp {word}.",
        "world": {"lamps": lamps, "wanted": [lamp, on]},
        "expected": {"state": {"lamps": {**lamps, lamp: on}}, "answer": None},
        "min_calls": 2,
    }


def problems(split, size, seed):
    if split not in SPLITS:
        raise LookupError(f"there is no split {split!r}; expected one of {', '.join(SPLITS)}")
    rng = random.Random(f"{split}/{seed}")
    found = {}
    while len(found) < size:
        made = draw(split, rng)
        found.setdefault(made["id"], made)
    return list(found.values())


def demonstrate(problem, seed, mistakes):
    rng = random.Random(f"{problem['id']}/{seed}")
    lamp, on = problem["world"]["wanted"]
    slip = rng.random() < mistakes
    calls = [
        {"name": "set_lamp", "arguments": {"lamp": lamp, "on": on != slip}},
        {"name": "finish", "arguments": {"answer": "done"}},
    ]
    house = new_house(problem)
    turns = [{"call": call, "observation": step(house, call)} for call in calls]
    return {"turns": turns, "spoiled": slip, "final_state": {"lamps": house["lamps"]}, "answer": house["answer"]}


def sibling(problem, seed):
    rng = random.Random(f"{problem['id']}/{seed}/sibling")
    while True:
        made = draw("train", rng)
        if made["type"] == problem["type"]:
            return made


# --- the conversation


class Desk:
    """Answers questions; holds the houses that are open."""

    def __init__(self):
        self.houses = {}
        self.calls = 0

    def hello(self, ask):
        told = {"protocol": 1, "version": VERSION, "tools": TOOLS, "demonstrates": True, "siblings": True}
        return {**told, "protocol": 2} if BROKEN == "protocol" else told

    def problems(self, ask):
        return {"problems": problems(ask["split"], ask["size"], ask["seed"])}

    def open(self, ask):
        if set(ask["problem"]["world"].get("lamps", {})) - set(COLOURS):
            raise LookupError(f"problem {ask['problem']['id']} has a lamp that is not sold here")
        self.houses[ask["world"]] = new_house(ask["problem"])
        return {}

    def call(self, ask):
        self.calls += 1
        misbehave(self.calls)
        return step(self.houses[ask["world"]], ask["call"])

    def final_state(self, ask):
        house = self.houses[ask["world"]]
        house["phase"] = ANSWERED
        return {"state": {"lamps": house["lamps"]}, "answer": house["answer"]}

    def close(self, ask):
        self.houses.pop(ask["world"], None)
        return {}

    def demonstrate(self, ask):
        return demonstrate(ask["problem"], ask["seed"], ask["mistakes"])

    def sibling(self, ask):
        return {"problem": sibling(ask["problem"], ask["seed"])}


def misbehave(calls):
    """Do what a broken world does at its third call."""
    if not BROKEN or calls != 3:
        return
    if BROKEN == "crash":
        sys.exit("the fuse blew")
    if BROKEN == "hang":
        time.sleep(600)
    if BROKEN == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    told = {"noise": "hello?", "nan": '{"id": %d, "data": {"x": NaN}}', "event": '{"id": %d, "data": {}, "event": "boo"}',
            "stale": '{"id": 1, "data": {}}', "shape": '{"id": %d, "data": 3}',
            "half": '{"id": %d, "data": {"x": "\\ud800"}}'}  # fmt: skip
    if BROKEN in told:
        line = told[BROKEN]
        print(line % CURRENT["id"] if "%d" in line else line, flush=True)
        CURRENT["told"] = True


CURRENT = {}


def main():
    desk = Desk()
    for line in sys.stdin:
        ask = json.loads(line)
        CURRENT.clear()
        CURRENT["id"] = ask["id"]
        try:
            answer = getattr(desk, ask["do"])(ask)
        except LookupError as e:
            answer = {"error": str(e)}
        if not CURRENT.get("told"):
            print(json.dumps({"id": ask["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
