"""The boundary: foreign exceptions become data or an error of ours; our own pass through."""

import pytest

from specs.errors import Interrupted, ServiceError, StateError
from tasks.boundary import Failure, boundary, foreign, reason_of


class OddError(Exception):
    """What a client might raise."""


def test_a_foreign_failure_is_data_with_its_place() -> None:
    def broken() -> int:
        raise OddError("no\nsecond line")

    found = boundary("verifier x", broken)
    assert isinstance(found, Failure)
    assert str(found).startswith("verifier x: OddError: no")
    assert found.place.startswith("test_boundary.py:")
    assert boundary("verifier x", lambda: 3) == 3


def test_what_a_failure_says_can_be_written() -> None:
    def broken() -> int:
        raise OddError("\ud800!")

    assert str(boundary("x", broken)).encode().startswith(b"x: OddError: \\ud800!")


def test_a_service_that_raises_is_a_service_error_in_one_line() -> None:
    with pytest.raises(ServiceError, match=r"^the store: OddError: first$") as caught, foreign("the store"):
        raise OddError("first\nsecond")
    assert isinstance(caught.value.__cause__, OddError)
    with pytest.raises(ServiceError, match=r"^the store: hm$"), foreign("the store", lambda e: "hm"):
        raise OddError
    assert reason_of(OddError()) == "OddError"


@pytest.mark.parametrize("error", [StateError("ours"), Interrupted("stop"), MemoryError()])
def test_our_own_errors_and_a_lack_of_memory_pass(error: BaseException) -> None:
    with pytest.raises(type(error)), foreign("the store"):
        raise error
