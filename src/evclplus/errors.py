"""Every error a user can cause, one type per kind.

Each message is one line that says what was wrong, what was expected and what to do. The command
line prints it and exits with code 2; Python callers can catch `EvclplusError` or one kind.
"""

import re

LONGEST = 600


class EvclplusError(Exception):
    """The base of every error this package raises on purpose. What it shows of a value may have
    many lines, such as those of a tensor; the message has one."""

    def __init__(self, message: object = "") -> None:
        line = re.sub(r"\s*\n\s*", " ", str(message).strip())
        super().__init__(line if len(line) <= LONGEST else f"{line[:LONGEST]} ...")


class SettingsError(EvclplusError, ValueError):
    """A setting is unknown, out of range or contradicts another."""


class DataError(EvclplusError, ValueError):
    """Data has the wrong shape, type or values."""


class ConversionError(EvclplusError, TypeError):
    """A module cannot be made Bayesian."""


class StateError(EvclplusError, RuntimeError):
    """Something was asked for in the wrong order: predict before learn, a task learned twice."""


class TrainingError(EvclplusError, RuntimeError):
    """Training went wrong: a term of the loss is not finite."""


class RanksError(EvclplusError, RuntimeError):
    """Processes that train one model have lost each other, or are not at the same place."""


class FileError(EvclplusError, RuntimeError):
    """A file or folder is missing, damaged, foreign, unwritable or would be overwritten."""
