"""How long `tutelage check` and `tutelage --help` take: median of seven interleaved runs, whole process."""

from statistics import median

from tests.bench.common import QUICKSTART, report, tutelage


def main() -> None:
    times: dict[str, list[float]] = {"check": [], "help": []}
    for _ in range(7):
        times["check"].append(tutelage("check", str(QUICKSTART))[0])
        times["help"].append(tutelage("--help")[0])
    figure = max(median(t) for t in times.values())
    report("check_speed", figure, "< 0.3 s", holds=figure < 0.3, detail={k: sorted(v) for k, v in times.items()})


if __name__ == "__main__":
    main()
