"""Numbers on the command line: one that cannot be is a mistake of usage, said before anything is done."""

import argparse
from collections.abc import Iterator

import pytest

from flows.cli import COMMANDS, main, parser

PROGRAM = "specs/programs/quickstart.yaml"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("inspect", "x:eval", "--limit", "-3"), "--limit: found '-3', expected a whole number of at least 1"),
        (("inspect", "x:eval", "--limit", "0"), "--limit: found '0', expected a whole number of at least 1"),
        (("cases", "list", "--limit", "-3"), "--limit: found '-3'"),
        (("status", "--runs", "0"), "--runs: found '0', expected a whole number of at least 1"),
        (("logs", "teach", "-n", "-5"), "--lines: found '-5', expected a whole number of at least 0"),
        (("logs", "teach", "-n", "some"), "--lines: found 'some', expected a whole number"),
        (("evaluate", PROGRAM, "--set", "golden", "--samples", "-1"), "--samples: found '-1'"),
        (("evaluate", PROGRAM, "--set", "golden", "--temperature", "nan"), "--temperature: found 'nan', expected a number of 0"),
        (("try", PROGRAM, "--temperature", "-1"), "--temperature: found '-1', expected a number of 0 or more"),
        (("try", PROGRAM, "--seed", "-1"), "--seed: found '-1'"),
        (("up", "--mlflow-port", "0"), "--mlflow-port: found '0', expected a whole number from 1 to 65535"),
        (("up", "--prefect-port", "70000"), "--prefect-port: found '70000', expected a whole number from 1 to 65535"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_is_refused(words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as refused:
        main(list(words))
    assert refused.value.code == 2
    assert told in capsys.readouterr().err


def options(one: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from options(sub)
        else:
            yield action


def test_no_option_takes_any_number():
    """`compare` says itself what its confidence must be."""
    plain = {(c, a.option_strings[-1]) for c in COMMANDS for a in options(parser(c)) if a.type in (int, float)}
    assert plain == {("compare", "--confidence")}
