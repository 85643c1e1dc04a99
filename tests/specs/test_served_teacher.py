"""What a program may say about a teacher behind a server, and what is refused before anything runs."""

from pathlib import Path

import pytest

from specs.served_teacher import ServedModelTeacher
from tests.specs.programs import load, mistakes

HERE = "url: 'http://127.0.0.1:8000'"
STAGE = "    data: [train]\n"


def program(algorithm: str, teacher: str = "", *roster: str, url: str = HERE) -> list[tuple[str, str]]:
    lines = [f"big: {{kind: served_model, model: m, {url}{', ' if teacher else ''}{teacher}}}", *roster]
    learns = f"  - {{id: learn, algorithm: {{{algorithm}}}, data: [train]}}\n"
    return [("verifiers:", "teachers:\n" + "".join(f"  {x}\n" for x in lines) + "verifiers:"), (STAGE, STAGE + learns)]


SAMPLED = "type: opd, over: {kind: sampled}"
LISTED = "type: opd, over: {kind: top_k, size: 20, support: teacher}"


@pytest.mark.parametrize(
    ("algorithm", "teacher", "url"),
    [
        (SAMPLED, "", HERE),
        (LISTED, "", HERE),
        ("type: opd, temperature: 0.7, over: {kind: top_k, size: 8, direction: forward}", "", HERE),
        (SAMPLED, "tokenizer: other, template: builtin/plain@1, revision: abc, top_k: 5", HERE),
        (SAMPLED, "", "url: 'http://localhost:8000/behind/a/proxy'"),
        (SAMPLED, "", "url: 'https://big.example.org'"),
        (SAMPLED, "unencrypted: yes", "url: 'http://10.0.0.7:8000'"),
        (SAMPLED, "api_key: '${env:KEY}'", "url: '${env:BIG_URL}'"),
        ("type: grpo, distill: {over: {kind: sampled}}", "", HERE),
        ("type: from_teacher, over: {kind: sampled}", "", HERE),
        (
            "type: short_opd, length: {kind: by_gap, lengths: [9, 20, 40]}, over: {kind: top_k, size: 4, support: teacher}",
            "",
            HERE,
        ),
    ],
)
def test_what_a_server_can_give_is_taken(tmp_path: Path, algorithm: str, teacher: str, url: str) -> None:
    found = load(tmp_path, *program(algorithm, teacher, url=url)).program.teachers["big"]
    assert isinstance(found, ServedModelTeacher)
    assert found.gives == ["logprobs"]


@pytest.mark.parametrize(
    ("algorithm", "teacher", "message"),
    [
        ("type: opd", "", "stages[2].algorithm.over: found full, but big stands behind a server, which gives the logprobs of sampled tokens and of the 20 likeliest; write over: {kind: sampled}, or over: {kind: top_k, size: 20, support: teacher}"),
        ("type: from_teacher", "", "stages[2].algorithm.over: found full, but big stands behind a server"),
        ("type: grpo, distill: {}", "", "stages[2].algorithm.distill.over: found full, but big stands behind a server"),
        ("type: opd, over: {kind: top_k, support: teacher}", "", "over.size: found 32, but the server of big lists at most 20"),
        ("type: opd, over: {kind: top_k, size: 8}", "", "over.support: found auto, which means the policy's likeliest tokens, but big lists its own"),
        ("type: opd, over: {kind: top_k, size: 8, direction: forward, support: policy}", "", "over.support: found policy"),
        ("type: opd, over: {kind: top_k, size: 8, support: teacher, loss_temperature: 2.0}", "", "over.loss_temperature: found 2, but big gives"),
        (LISTED, "tokenizer: other", "over: needs a teacher with the policy's tokens, but teachers.big has a tokenizer of its own"),
        (LISTED, "template: builtin/plain@1", "over: needs a teacher with the policy's template, but that of big is builtin/plain@1"),
        ("type: opd, temperature: 0.7, over: {kind: sampled}", "", "stages[2].algorithm.temperature: found 0.7, but big scores sampled tokens at 1"),
        ("type: grpo, temperature: 1.2, distill: {over: {kind: sampled}}", "", "stages[2].algorithm.temperature: found 1.2, but big scores"),
        ("type: from_teacher, temperature: 1.2, over: {kind: sampled}", "", "stages[2].algorithm.temperature: found 1.2, but big scores"),
        (SAMPLED, "align: {score: covers}", "teachers.big.align.score: found covers, which needs whole distributions"),
        (SAMPLED, "gives: [sample]", "teachers.big.gives[0]: found sample, which a teacher of kind served_model cannot give; it can give logprobs"),
        (SAMPLED, "api_key: sk-canary", "expected a reference"),
        (SAMPLED, "top_p: 20", "teachers.big.top_p: unknown key here; it belongs to teachers.<name> (kind: openai), or did you mean top_k?"),
    ],
)  # fmt: skip
def test_what_it_cannot_give_is_refused(tmp_path: Path, algorithm: str, teacher: str, message: str) -> None:
    told = "\n".join(mistakes(tmp_path, *program(algorithm, teacher)))
    assert message in told
    assert "canary" not in told


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://10.0.0.7:8000", "teachers.big.url: found 'http://10.0.0.7:8000', expected http:// on the loopback, or https://"),
        ("http://0.0.0.0:8000", "write unencrypted: yes where you trust all that lies between"),
        ("http://127.0.0.1.example.com", "teachers.big.url: found"),
        ("http://127.0.0.1:8000/v1", "teachers.big.url: found more than the address"),
        ("http://127.0.0.1:8000?key=1", "teachers.big.url: found more than the address"),
        ("ftp://127.0.0.1", "teachers.big.url"),
        ("https://me:secret-canary@big.example.org", "teachers.big.url"),
    ],
)  # fmt: skip
def test_an_address_that_others_could_listen_at_is_refused(tmp_path: Path, url: str, message: str) -> None:
    told = "\n".join(mistakes(tmp_path, *program(SAMPLED, url=f"url: '{url}'")))
    assert message in told
    assert "canary" not in told


def test_the_name_of_a_model_is_no_reference(tmp_path: Path) -> None:
    named = [(a, b.replace("model: m", "model: '${env:M}'")) for a, b in program(SAMPLED)]
    assert "teachers.big.model: found a reference" in "\n".join(mistakes(tmp_path, *named))


def test_lists_of_several_teachers_are_summed(tmp_path: Path) -> None:
    both = f"{LISTED}, teachers: {{big: 1.0, old: 1.0}}"
    old = "old: {kind: earlier_self, of: init}"
    told = "\n".join(mistakes(tmp_path, *program(both, "", old)))
    assert "stages[2].algorithm.combine: several teachers make one distribution, but big lists other tokens" in told
    assert not load(tmp_path, *program(f"{both}, combine: sum", "", old)).warnings
    told = "\n".join(mistakes(tmp_path, *program(f"{both}, combine: sum, by_confidence: yes", "", old)))
    assert "stages[2].algorithm.by_confidence: needs whole distributions" in told


def test_a_temperature_that_moves_is_refused(tmp_path: Path) -> None:
    form = "form: success_distill, success_distill: {final_temperature: 0.5}"
    told = "\n".join(
        mistakes(tmp_path, *program(f"type: self_distilled, {form}, distill: {{over: {{kind: sampled}}}}"))
    )
    assert "stages[2].algorithm.success_distill.final_temperature: found 0.5" in told
