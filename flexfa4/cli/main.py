"""`flexfa4 demo | inspect MOD | emulate MOD | info`, MOD a name of the gallery or FILE.py:NAME."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import FlexError

MOD = dict(metavar="MOD", help="a name of the gallery, such as causal (others are listed), or FILE.py:NAME, where NAME may be a "
           "call that makes a mod: FILE.py:sliding_window(256)")
KIND = dict(choices=("mask", "score", "out"), help="which kind of mod (default: of FILE.py:NAME "
            "told from its arguments, of the gallery all it has)")
SECTIONS = ("gallery", "pictures", "language", "sentences")


# A mask of so many rows takes 1 GB and some seconds; what a gallery mod captures, 2 GB.
MOST_POSITIONS = 2**28


def positions(text: str) -> int:
    """A length of the command line. Raises what argparse reports with the option's name."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number of positions")
    if count > MOST_POSITIONS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most {MOST_POSITIONS} positions")
    return count


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="flexfa4", description="Programmable attention: what it does here, and with your mods.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the gallery and two real models, checked; pictures")
    demo.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="run these sections alone")
    demo.add_argument("--out", type=Path, default=Path("demo"), metavar="FOLDER", help="where pictures go (default: demo/)")

    inspect = commands.add_parser("inspect", help="what a mod becomes: graph, facts, tiles, schedule")
    inspect.add_argument("target", **MOD)
    inspect.add_argument("--kind", **KIND)
    inspect.add_argument("--q-len", type=positions, metavar="N", help="query positions (default: 2048; for a name of the gallery "
                         "as many as keys, or those it is about)")
    inspect.add_argument("--kv-len", type=positions, metavar="N", help="key positions (default: as many as queries)")
    inspect.add_argument("--sass", action="store_true", help="instead: instructions a score in the kernels, by class")
    inspect.add_argument("--out", type=Path, metavar="FILE.png", help="also draw the tile map (mask) or the heat map (score)")

    emulate = commands.add_parser("emulate", help="the GPU kernel of a mod, run on this CPU: error, tiles, timeline")
    emulate.add_argument("name", **MOD)
    emulate.add_argument("--kind", **KIND)
    emulate.add_argument("--arch", choices=("sm90", "sm100"), default="sm100", help="which kernel (default: sm100)")
    emulate.add_argument("--seq-len", type=positions, default=300, metavar="N", help="key positions (default: 300)")
    emulate.add_argument("--seed", type=int, default=1, help="of the order in which warps run (default: 1)")
    emulate.add_argument("--completion", choices=("immediate", "random", "late"), default="random",
                         help="when asynchronous work finishes (default: random)")
    emulate.add_argument("--timeline", action="store_true",
                         help="run in modelled time instead of by seed and completion: a timeline in clocks")
    emulate.add_argument("--out", type=Path, metavar="FILE.png", help="also draw the timeline (needs matplotlib)")

    commands.add_parser("info", help="what can run on this machine, and why not")
    return top


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, 1 where a check or the mod failed, 2 for a wrong command line (from argparse)."""
    options = parser().parse_args(argv)
    try:
        status = COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader, such as head, has seen enough; Python would complain once more when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FlexError as error:
        print(f"flexfa4 {options.command}: {error}", file=sys.stderr)
        return 1


def run_demo(options: argparse.Namespace) -> int:
    needed = {"tqdm": "all", "matplotlib": "pictures", "transformers": "language", "gguf": "language", "accelerate": "language"}
    missing = [name for name, section in needed.items() if section in ("all", *options.only) and find_spec(name) is None]
    if missing:
        print(
            f"flexfa4 demo: {', '.join(missing)} not installed: pip install 'flexfa4[demo,models]', or run `make demo`",
            file=sys.stderr,
        )
        return 1
    from ..demo.run import run

    return run(tuple(options.only), options.out)


def run_inspect(options: argparse.Namespace) -> int:
    if options.sass:
        from .machine_code import graphs_of, report as costs

        print(costs(*graphs_of(options.target, options.kind)))
        return 0
    from .inspect import report

    print(report(options.target, options.kind, options.q_len, options.kv_len, options.out))
    return 0


def run_emulate(options: argparse.Namespace) -> int:
    from ..emulator import EmulatorError
    from .emulate import report

    try:
        print(report(options))
    except EmulatorError as error:
        print(f"flexfa4 emulate: the launch was stopped ({error.kind}): {error}", file=sys.stderr)
        return 1
    return 0


def run_info(options: argparse.Namespace) -> int:
    from .info import report

    print(report())
    return 0


COMMANDS = {"demo": run_demo, "inspect": run_inspect, "emulate": run_emulate, "info": run_info}

if __name__ == "__main__":
    sys.exit(main())
