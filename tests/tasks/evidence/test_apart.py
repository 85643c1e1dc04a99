"""Evaluation texts in the training data, lightly disguised."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.environments import OrderDesk
from tasks.episodes.environments import environment_for
from tasks.evidence.apart import TrainingTexts, find_overlaps, normalised

# KP-DATA-04
TANK = "A tank holds 240 litres. A pump empties 15 litres per minute. How long until it is empty?"
SAME = "a tank holds 240 litres a pump empties 15 litres per minute how long until it is EMPTY"
WITHIN = "Solve it.\n\n" + TANK.replace(" ", "\u00a0") + "\n\nThink step by step."
OTHER = "A tank holds 90 litres. A tap fills 12 litres each minute. After how many minutes is it full?"


def reasons(train: str, evaluation: str, threshold: float = 0.9) -> list[str]:
    return [h.reason for h in find_overlaps({"t": [("1", train)]}, {"e": [("2", evaluation)]}, threshold)]


def test_a_disguised_question_is_found_with_its_id_and_span() -> None:
    train = {"demos": [("train_1", SAME), ("train_2", WITHIN), ("train_3", OTHER)]}
    hits = find_overlaps(train, {"hidden": [("eval_q", TANK)]}, 0.9)

    assert [(h.train_id, h.reason, h.evaluation_id) for h in hits] == [
        ("train_1", "text", "eval_q"), ("train_2", "contained", "eval_q"),
    ]  # fmt: skip
    assert hits[1].span == normalised(TANK)


@pytest.mark.parametrize(
    ("train", "evaluation", "expected"),
    [
        ("Ｃａｆé au lait?", "cafe\u0301 AU-LAIT", ["text"]),
        ("Cancel order 1234.", "Cancel order 5678.", []),
        ('Order 4 "red lamp" for "Ada Adler".', 'Order 4 "red lamp" for "Ben Adler".', []),
        ("12 + 5", "12 - 5", []),
        ("12+5?", "12 + 5", ["text"]),
        ("yes", "Is the answer yes or no, and why would it be yes at all?", []),
        ("Is it yes?", "it is", []),
        ("", "", ["text"]),
    ],
)
def test_pairs(train: str, evaluation: str, expected: list[str]) -> None:
    assert reasons(train, evaluation) == expected


def test_near_duplicates_need_the_same_entities() -> None:
    words = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(60)]
    text, changed = " ".join(words), " ".join([*words[:30], "other", *words[31:]])

    assert reasons(text, changed, 0.9) == ["near_duplicate"]
    assert reasons(text, changed, 0.95) == []
    assert reasons(f'{text} "ada"', f'{changed} "ben"', 0.9) == []
    assert reasons(f"{text} 7", f"{changed} 8", 0.9) == []


def test_the_same_id_is_a_hit_whatever_the_text() -> None:
    hits = find_overlaps({"t": [("7", "one thing")]}, {"e": [("7", "quite another")]}, 0.9)
    assert [h.reason for h in hits] == ["id"]


def test_disjoint_splits_of_the_order_desk_give_no_hit_and_it_is_quick() -> None:
    desk = environment_for("desk", OrderDesk(kind="order_desk"))
    sizes = {"train": 3000, "hidden": 800, "golden": 450}
    texts = {s: [(p.id, p.text) for p in desk.problems(s, n, 1)] for s, n in sizes.items()}
    start = time.process_time()
    hits = find_overlaps({"demos": texts["train"] * 3}, {s: texts[s] for s in ("hidden", "golden")}, 0.9)

    assert hits == []
    assert time.process_time() - start < 2.0
    again = find_overlaps({"demos": texts["hidden"][:50]}, {"hidden": texts["hidden"]}, 0.9)
    assert {h.train_id for h in again} == {i for i, _ in texts["hidden"][:50]}


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=12), max_size=5), st.lists(st.sampled_from("abcd"), max_size=9)
)
def test_looking_in_growing_training_texts_finds_what_comparing_all_finds(
    train: list[list[str]], new: list[str]
) -> None:
    texts = [(f"t{number}", " ".join(words)) for number, words in enumerate(train)]
    hits = find_overlaps({"t": texts}, {"e": [("e", " ".join(new))]}, 0.7)
    found = TrainingTexts(texts, 0.7).hit("e", " ".join(new))
    assert (found and (found.train_id, found.reason)) == (hits[0].train_id, hits[0].reason) if hits else found is None
