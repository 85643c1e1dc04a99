"""A model server with the policy's own weights, as a test finds it: well, and asked nothing yet."""

import pytest

from tests.tasks.episodes.completions_server import CompletionsServer
from tests.tasks.teachers.scored import serving


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory):
    with serving(tmp_path_factory.mktemp("model")) as found:
        yield found


@pytest.fixture
def server(model_server: CompletionsServer):
    yield model_server
    model_server.on_score, model_server.tokenizes, model_server.max_logprobs = None, True, 20
    model_server.scored, model_server.most_at_once, model_server.keys = [], 0, set()
