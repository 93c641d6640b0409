"""The result of one check, with an advice."""

from __future__ import annotations

import dataclasses
import enum
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy

from onceward.errors import OncewardError
from onceward.store.postgres.errors import one_line


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        check: The name of the check. Scripts match it, so it never changes.
        level: ok, warning or problem.
        detail: The facts, with their numbers.
        advice: The command or change that helps. Empty if everything is well.
        data: More numbers, for scripts.
    """

    check: str
    level: Level
    detail: str
    advice: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def ok(check: str, detail: str, **data: Any) -> CheckResult:
    return CheckResult(check, Level.OK, detail, data=data)


def warning(check: str, detail: str, advice: str, **data: Any) -> CheckResult:
    return CheckResult(check, Level.WARNING, detail, advice, data)


def problem(check: str, detail: str, advice: str, **data: Any) -> CheckResult:
    return CheckResult(check, Level.PROBLEM, detail, advice, data)


def errors_as_problems(check: str, advice: str, run: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check. An error of a store or of the system is a problem, with this advice."""
    try:
        yield from run()
    except OncewardError as error:
        yield problem(check, str(error), advice)
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
        yield problem(check, one_line(str(getattr(error, "orig", None) or error)), advice)
    except OSError as error:
        yield problem(check, f"{error.filename or 'I/O error'}: {error.strerror or error}", advice)


def worst(findings: Iterable[CheckResult]) -> Level:
    levels = {finding.level for finding in findings}
    return next((level for level in (Level.PROBLEM, Level.WARNING) if level in levels), Level.OK)
