"""Tag match: the one predicate of the contract, used by record deletes and router filters.

`value` of a Glob is the literal prefix, without the final `*`; that is also what is stored. An untagged record never
matches. Built from JSON by `parse_match`, from a log body by `TagMatch.from_stored`.
"""

from typing import Literal

import msgspec

from topics.errors import InvalidRequest

MatchOp = Literal["Eq", "Glob"]


class TagMatch(msgspec.Struct, frozen=True):
    op: MatchOp
    value: str

    def matches(self, tag: bytes | None) -> bool:
        if tag is None:
            return False
        wanted = self.value.encode()
        return tag == wanted if self.op == "Eq" else tag.startswith(wanted)

    def to_json(self) -> list[str]:
        """The tuple form that responses echo: `["tag","Glob","pub:*"]`."""
        return ["tag", self.op, self.value if self.op == "Eq" else self.value + "*"]

    def to_stored(self) -> list[str]:
        return [self.op, self.value]

    @classmethod
    def from_stored(cls, stored: list[str]) -> "TagMatch":
        return msgspec.convert({"op": stored[0], "value": stored[1]}, cls)


def parse_match(given: object) -> TagMatch:
    """A predicate as it came in JSON: a bare string, or `["tag", op, value]`."""
    if isinstance(given, str):
        return TagMatch("Glob", given[:-1]) if given.endswith("*") else TagMatch("Eq", given)
    match given:
        case ["tag", "Eq", str(value)]:
            return TagMatch("Eq", value)
        case ["tag", "Glob", str(value)] if value.endswith("*"):
            return TagMatch("Glob", value[:-1])
    raise InvalidRequest('a tag match is "x", "x*", ["tag","Eq","x"] or ["tag","Glob","x*"]')
