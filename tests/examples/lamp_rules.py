"""The rules of lamp_judge.sh: lamps as wanted earn 0.8, and 0.2 more without a needless call."""

import json
import sys
import time

broken = sys.argv[1] if len(sys.argv) > 1 else ""


def case(about, lamps, expect, *events):
    turns = [
        {"text": "", "call": {"name": "set_lamp", "arguments": {}}, "observation": {"data": {}, "event": e}}
        for e in events
    ]
    wanted = {"expected": {"state": {"lamps": {"red": True}}}}
    return {"about": about, "trajectory": {"final_state": lamps, "turns": turns}, "problem": wanted, "expect": expect}


CASES = [
    case("the lamp is on", {"lamps": {"red": True}}, "pass"),
    case("the lamp is off", {"lamps": {"red": False}}, "fail"),
    case("another lamp is on as well", {"lamps": {"red": True, "blue": True}}, "fail"),
    case("nothing is known of the house", None, "invalid"),
]
if broken == "selftest":
    CASES[0]["expect"] = "fail"
if broken == "nocases":
    CASES = CASES[:1]


def verify(trajectory, problem):
    state = trajectory["final_state"]
    if not isinstance(state, dict):
        return {"invalid": "no final state"}
    right = state == problem["expected"]["state"]
    needless = sum((t.get("observation") or {}).get("event") == "needless" for t in trajectory["turns"])
    score = (0.8 if right else 0.0) + (0.2 if right and not needless else 0.0)
    return {"score": score, "passed": right, "evidence": {"needless": needless}}


SLIPS = {
    "range": {"score": 7, "passed": True},
    "bool": {"score": True, "passed": True},
    "huge": {"score": 10**400, "passed": True},
    "half": {"score": 1, "passed": True, "evidence": {"said": "\ud800"}},
    "word": {"score": 1, "passed": "yes"},
    "empty": {},
    "evidence": {"score": 1, "passed": True, "evidence": "x" * 30000},
}
for line in sys.stdin:
    ask = json.loads(line)
    if ask["do"] == "hello":
        answer = {"protocol": 1, "version": "lamp-rules-1", "self_test": CASES}
    else:
        answer = verify(ask["trajectory"], ask["problem"])
        if ask["problem"].get("id") != "self-test":  # misbehave once the self-test has passed
            answer = SLIPS.get(broken, answer)
            if broken == "crash":
                sys.exit(9)
            if broken == "late":
                time.sleep(60)
            if broken == "long":
                answer["evidence"] = {"text": "x" * 3_000_000}
            if broken == "nan":
                answer["score"] = float("nan")
    print(json.dumps({"id": ask["id"], **answer}))
