"""Training texts that are evaluation texts in disguise.

Four kinds of hit, the surest first: the same id; the same text once Unicode form (NFKC), case, punctuation and
spacing are set aside; an evaluation text inside a longer training text; and texts whose word 3-grams overlap
(Jaccard) by at least a threshold while both speak of the same entities, that is quoted names and numbers. Texts made
from one template differ in their entities and are therefore apart.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

CONTAINED_WORDS = 6
"""Least words of an evaluation text that is looked for inside training texts."""
_WORD = re.compile(r"[^\W_]+|(?<=\d)\s*[-+*/^=<>]\s*(?=\d)")
"""Words; between numbers also signs, because 12 + 5 and 12 - 5 are not the same question."""
_QUOTED = re.compile(r'"([^"]*)"')
_DIGITS = re.compile(r"\d+")

Texts = Mapping[str, Sequence[tuple[str, str]]]
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A training record that gives an evaluation record away."""

    train_set: str
    train_id: str
    evaluation_set: str
    evaluation_id: str
    reason: str
    """`id | text | contained | near_duplicate`."""
    similarity: float
    span: str
    """The evaluation text as it was matched, at most 200 characters."""


@dataclass(frozen=True, slots=True)
class _Text:
    set: str
    id: str
    words: str
    """Words with one space between, and one at either end."""
    grams: frozenset[Gram]
    entities: frozenset[str]


def normalised(text: str) -> str:
    """Return the words of a text, NFKC and case folded, with one space between them."""
    return " ".join(w.strip() for w in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def overlap_finder(evaluation: Texts, threshold: float) -> Callable[[str, str], Hit | None]:
    """Return a function of (id, text) that says which evaluation record a new text gives away, the surest first."""
    index = _Index(evaluation, threshold)
    return lambda record, text: next(iter(index.hits(_text("new", record, text))), None)


def find_overlaps(train: Texts, evaluation: Texts, threshold: float) -> list[Hit]:
    """Return every hit, at most one per pair of records, in the order of the training sets."""
    wanted = _Index(evaluation, threshold)
    return [hit for name, texts in train.items() for i, text in texts for hit in wanted.hits(_text(name, i, text))]


class TrainingTexts:
    """Training texts, which may grow, in which new evaluation texts are looked for: the rule of `find_overlaps`."""

    def __init__(self, texts: Sequence[tuple[str, str]], threshold: float) -> None:
        self._threshold = threshold
        self._texts: list[_Text] = []
        self._having: dict[Gram, list[int]] = {}
        for record, text in texts:
            self.add(record, text)

    def add(self, record: str, text: str) -> None:
        """Take in one more training text."""
        made = _text("training", record, text)
        for gram in made.grams:
            self._having.setdefault(gram, []).append(len(self._texts))
        self._texts.append(made)

    def hit(self, record: str, text: str) -> Hit | None:
        """Return the first training text that gives an evaluation text away, another record than itself."""
        wanted = _text("new", record, text)
        counts = Counter({g: len(self._having.get(g, ())) for g in wanted.grams})
        rare = _prefix(wanted, counts, self._threshold)
        for number in sorted({n for g in rare for n in self._having.get(g, ())}):
            train = self._texts[number]
            reason, similarity = _compare(train, wanted, self._threshold)
            if reason:
                span = wanted.words.strip()[:200]
                return Hit(train.set, train.id, wanted.set, record, reason, round(similarity, 4), span)
        return None


def _prefix(text: _Text, counts: Counter[Gram], threshold: float) -> list[Gram]:
    """Return the rarest 3-grams of which any text that is near enough, or holds this one, has at least one."""
    size = len(text.grams)
    needed = max(1, size - ceil(threshold * size) + 1)
    return sorted(text.grams, key=lambda g: (counts[g], g))[:needed]


def _compare(train: _Text, text: _Text, threshold: float) -> tuple[str, float]:
    """Return why a training text gives an evaluation text away, empty where it does not, and how alike they are."""
    if train.words == text.words:
        return "text", 1.0
    if text.words in train.words and text.words.count(" ") > CONTAINED_WORDS:
        return "contained", 1.0
    shared = len(train.grams & text.grams)
    similarity = shared / (len(train.grams) + len(text.grams) - shared)
    alike = train.entities <= text.entities or text.entities <= train.entities
    return ("near_duplicate", similarity) if similarity >= threshold and alike else ("", similarity)


def _text(name: str, record: str, text: str) -> _Text:
    words = normalised(text)
    parts = words.split()
    grams = {tuple(parts[i : i + 3]) for i in range(len(parts) - 2)} or {tuple(parts)}
    quoted = {normalised(q) for q in _QUOTED.findall(text)}
    return _Text(name, record, f" {words} ", frozenset(grams), frozenset(quoted.union(_DIGITS.findall(words))))


class _Index:
    """Evaluation texts by id, by words, and by their rarest 3-grams."""

    def __init__(self, evaluation: Texts, threshold: float) -> None:
        self._threshold = threshold
        self._texts = [_text(name, i, text) for name, texts in evaluation.items() for i, text in texts]
        self._ids: dict[str, list[int]] = {}
        self._rare: dict[Gram, list[int]] = {}
        counts = Counter(g for t in self._texts for g in t.grams)
        for number, text in enumerate(self._texts):
            self._ids.setdefault(text.id, []).append(number)
            for gram in _prefix(text, counts, threshold):
                self._rare.setdefault(gram, []).append(number)

    def hits(self, train: _Text) -> list[Hit]:
        """Return the evaluation texts that a training text gives away."""
        candidates = {n for g in train.grams for n in self._rare.get(g, ())}
        same_id = set(self._ids.get(train.id, ()))
        found: list[Hit] = []
        for number in sorted(candidates | same_id):
            text = self._texts[number]
            reason, similarity = ("id", 1.0) if number in same_id else _compare(train, text, self._threshold)
            if reason:
                span = text.words.strip()[:200]
                found.append(Hit(train.set, train.id, text.set, text.id, reason, round(similarity, 4), span))
        return found
