"""What README shows is what the product does."""

from pathlib import Path

from flows.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_first_program_is_what_init_writes(tmp_path: Path):
    shown = README.split("```yaml\n")[1].split("```")[0]
    assert main(["init", str(tmp_path / "my.yaml"), "--name", "my-desk"]) == 0
    _, _, written = (tmp_path / "my.yaml").read_text(encoding="utf-8").partition("\n")  # the first line names commands
    assert shown == written
    assert len(shown.splitlines()) <= 25
    assert main(["check", str(tmp_path / "my.yaml")]) == 0
