"""Seconds of a repeated, finished quickstart; every node must be reused. Runs the quickstart first (minutes)."""

from statistics import median

from tests.bench.common import QUICKSTART, fresh_home, report, tutelage


def main() -> None:
    with fresh_home() as home:
        first, _ = tutelage("run", str(QUICKSTART), home=home)
        again = [tutelage("run", str(QUICKSTART), "--json", home=home) for _ in range(5)]
    figure = median(seconds for seconds, _ in again)
    codes = [done.returncode for _, done in again]
    report(
        "repeat",
        figure,
        "< 5 s",
        holds=figure < 5 and set(codes) == {0},
        detail={"first_s": round(first, 1), "seconds": [round(s, 2) for s, _ in again], "exit_codes": codes},
    )


if __name__ == "__main__":
    main()
