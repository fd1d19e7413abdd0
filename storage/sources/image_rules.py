"""Rules of an image file, and errors that name the rule without the file."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from privacy.errors import InputError
from storage.sources.declared_images import FILE_NAME


class FileRule(StrEnum):
    """Rule of a file; the value is the text that an error may show."""

    WHOLE = "whole files of the declared kind, none damaged or truncated"
    LARGE = "files of at most 64 MiB"
    SIZE = "images of the declared rows and columns of pixels"
    DEPTH = "8 bits a channel, and no palette"
    CHANNELS = "gray or colour images as declared, without an alpha channel"
    FRAMES = "one frame in each file"
    UNCOMPRESSED = "uncompressed pixels"
    MONOCHROME = "images of the kind MONOCHROME2"
    BURNED_IN = "files that say that no text is burned in, as others are declared to be refused"


class RefusedFile(Exception):
    """One file breaks a rule."""

    def __init__(self, rule: FileRule) -> None:
        super().__init__(rule)
        self.rule = rule


class RefusedFiles(InputError):
    """Files that break rules. `broken` is private: rule, row number and name of each file."""

    broken: Sequence[tuple[FileRule, int, str]] = ()

    @classmethod
    def of(cls, broken: Sequence[tuple[FileRule, int, str]]) -> Self:
        """Return the error for these files."""
        rules = "; ".join(sorted({str(rule) for rule, *_ in broken}))
        error = cls("IMAGE_REFUSED", f"column {FILE_NAME}: expected {rules}; correct the source")
        error.broken = broken
        return error
