"""Rules that the file of an image keeps, and the refusal of one that does not."""

from enum import StrEnum


class FileRule(StrEnum):
    """Rule of a file; the value is the text that an error may show."""

    WHOLE = "whole files of the declared kind, none damaged or truncated"
    LARGE = "files of at most 64 MiB"
    SIZE = "images of the declared rows and columns of pixels"
    DEPTH = "8 bits a channel, and no palette"
    CHANNELS = "gray or colour images as declared, without an alpha channel"
    FRAMES = "one frame in each file"
    UNCOMPRESSED = "uncompressed pixels"
    RESCALE = "a slope and an intercept, not empty"
    MONOCHROME = "images of the kind MONOCHROME2"
    BURNED_IN = "files that say that no text is burned in, as others are declared to be refused"


class RefusedFile(Exception):
    """One file breaks a rule."""

    def __init__(self, rule: FileRule) -> None:
        super().__init__(rule)
        self.rule = rule
