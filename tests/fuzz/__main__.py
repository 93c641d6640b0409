"""Run the fuzzer: `make fuzz SECONDS=60`. A failing input is written to `tests/fuzz/corpus/`; commit it with the fix."""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
from pathlib import Path

from tests.fuzz.engine import Failure, Fuzzer, Target
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


def keep(failure: Failure, folder: Path = CORPUS) -> Path:
    """Write the input of a failure to a file whose name has the target."""
    digest = hashlib.sha256(failure.data).hexdigest()[:12]
    file = folder / f"{failure.target.name}.{digest}"
    file.write_bytes(failure.data)
    return file


def fuzz(target: Target, seconds: float, seed: int) -> bool:
    """Fuzz one target, and print what came of it. Return whether nothing failed."""
    fuzzer = Fuzzer(target, random.Random(seed))
    try:
        fuzzer.run(seconds=seconds)
    except Failure as failure:
        print(f"onceward: {failure}\nwritten to {keep(failure)}", flush=True)
        return False
    print(f"onceward: {target.name}: {fuzzer.inputs} inputs, {len(fuzzer.outcomes)} kinds of results", flush=True)
    return True


def main() -> int:
    """Fuzz all targets or the named ones. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help="the targets; default: all of them")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to fuzz each target")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    unknown = set(options.names) - TARGETS.keys()
    if unknown:
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    # The hub logs what it refuses.
    logging.disable(logging.CRITICAL)
    print(f"onceward: seed {options.seed}", flush=True)
    chosen = [TARGETS[name] for name in options.names or TARGETS]
    # A failure of one target does not keep the others from running.
    failed = [target.name for target in chosen if not fuzz(target, options.seconds, options.seed)]
    if failed:
        print(f"onceward: failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
