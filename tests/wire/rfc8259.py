"""An oracle: RFC 8259 read from the text, slow and plain, sharing nothing with the product.

`parse` gives a tree of nodes with their byte ranges, or raises NotJson. It takes lone surrogate escapes; whether they
are allowed where they stand is for `takes_write` to say.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


class NotJson(Exception):
    pass


@dataclass
class Node:
    kind: str  # object, array, string, number, true, false, null
    start: int
    end: int = 0
    items: list["Node"] = field(default_factory=list)
    pairs: list[tuple["Node", "Node"]] = field(default_factory=list)
    value: str = ""

    @property
    def depth(self) -> int:
        below = [*self.items, *(value for _, value in self.pairs)]
        return (self.kind in ("object", "array")) + max((node.depth for node in below), default=0)

    def last(self, key: str) -> "Node | None":
        found = [value for name, value in self.pairs if name.value == key]
        return found[-1] if found else None


BLANK = re.compile(rb"[ \t\n\r]*")
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Parser:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def blank(self) -> None:
        found = BLANK.match(self.text, self.at)
        assert found
        self.at = found.end()

    def peek(self) -> bytes:
        return self.text[self.at : self.at + 1]

    def expect(self, token: bytes) -> None:
        if not self.text.startswith(token, self.at):
            raise NotJson(self.at)
        self.at += len(token)

    def value(self) -> Node:
        first = self.peek()
        node = Node("", self.at)
        if first == b"{":
            self.object(node)
        elif first == b"[":
            self.array(node)
        elif first == b'"':
            self.string(node)
        elif first and first in b"tfn":
            node.kind = {b"t": "true", b"f": "false", b"n": "null"}[first]
            self.expect(node.kind.encode())
        else:
            self.number(node)
        node.end = self.at
        return node

    def object(self, node: Node) -> None:
        node.kind = "object"
        self.expect(b"{")
        self.blank()
        while self.peek() != b"}":
            if node.pairs:
                self.expect(b",")
                self.blank()
            key = Node("", self.at)
            self.string(key)
            self.blank()
            self.expect(b":")
            self.blank()
            node.pairs.append((key, self.value()))
            self.blank()
        self.expect(b"}")

    def array(self, node: Node) -> None:
        node.kind = "array"
        self.expect(b"[")
        self.blank()
        while self.peek() != b"]":
            if node.items:
                self.expect(b",")
                self.blank()
            node.items.append(self.value())
            self.blank()
        self.expect(b"]")

    def number(self, node: Node) -> None:
        found = NUMBER.match(self.text, self.at)
        if not found:
            raise NotJson(self.at)
        node.kind, self.at = "number", found.end()

    def string(self, node: Node) -> None:
        node.kind = "string"
        self.expect(b'"')
        units: list[int] = []  # UTF-16, so that a pair of escapes becomes one character
        while self.peek() != b'"':
            units += self.character()
        self.expect(b'"')
        raw = b"".join(unit.to_bytes(2, "little") for unit in units)
        node.value = raw.decode("utf-16-le", "surrogatepass")

    def character(self) -> list[int]:
        first = self.peek()
        if not first or first < b" ":
            raise NotJson(self.at)
        if first == b"\\":
            return self.escape()
        length = 1 if first < b"\x80" else 2 if first < b"\xe0" else 3 if first < b"\xf0" else 4
        piece = self.text[self.at : self.at + length].decode("utf-8")
        self.at += length
        raw = piece.encode("utf-16-le")
        return [int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2)]

    def escape(self) -> list[int]:
        self.expect(b"\\")
        letter = self.peek().decode("latin-1")
        self.at += 1
        if letter == "u":
            digits = self.text[self.at : self.at + 4]
            if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
                raise NotJson(self.at)
            self.at += 4
            return [int(digits, 16)]
        if letter not in SIMPLE:
            raise NotJson(self.at)
        return [ord(SIMPLE[letter])]


def parse(text: bytes) -> Node:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise NotJson("encoding") from None
    parser = Parser(text)
    parser.blank()
    node = parser.value()
    parser.blank()
    if parser.at != len(text):
        raise NotJson(parser.at)
    return node


def lone(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def has_lone_outside(node: Node, path: tuple[str, ...] = ()) -> bool:
    """`path` is the keys and `*` for array places; payloads are `records * data` and `records * meta`."""
    if path in (("records", "*", "data"), ("records", "*", "meta")):
        return False
    if node.kind == "string":
        return lone(node.value)
    below = [has_lone_outside(item, (*path, "*")) for item in node.items]
    below += [lone(key.value) or has_lone_outside(value, (*path, key.value)) for key, value in node.pairs]
    return any(below)


WRITE_FIELDS = {
    "node": ("string", "null"),
    "idempotency_key": ("string", "null"),
    "create": ("true", "false", "null"),
    "disable_backpressure": ("true", "false"),
}
RECORD_FIELDS = {"tag": ("string", "null"), "node": ("string", "null")}


def takes_write(body: bytes) -> list[tuple[bytes, bytes | None]] | None:
    """The texts of data and meta of each record if the contract takes the body of a write, else None.

    `config` is left out: it has tests of its own."""
    try:
        root = parse(body)
    except NotJson:
        return None
    records = root.last("records")
    if root.kind != "object" or root.depth >= 128 or has_lone_outside(root):
        return None
    if records is None or records.kind != "array" or not fits(root, WRITE_FIELDS):
        return None
    taken = []
    for record in records.items:
        data, meta = record.last("data"), record.last("meta")
        if record.kind != "object" or data is None or not fits(record, RECORD_FIELDS):
            return None
        has_meta = meta is not None and meta.kind != "null"
        taken.append((body[data.start : data.end], body[meta.start : meta.end] if has_meta and meta else None))
    return taken


def fits(node: Node, kinds: Mapping[str, tuple[str, ...]]) -> bool:
    return all(value.kind in kinds[key] for key in kinds if (value := node.last(key)) is not None)
