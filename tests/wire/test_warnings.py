"""Unknown fields: taken as before, and named; and nobody who sends none pays for it."""

from __future__ import annotations

import json
import random
from typing import Any, get_args

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.wire import openapi
from topics.wire.incoming import json as wire_json
from topics.wire.incoming.json import SENTENCES_MAX, BodyDecoder, Unknown, count_fields, warnings_of, with_warnings
from topics.wire.incoming.queue_requests import (
    decode_ack,
    decode_claim,
)
from topics.wire.incoming.requests import (
    decode_config,
    decode_datas,
    decode_delete,
    decode_diff,
    decode_records,
    decode_router,
    decode_watch,
    decode_write,
)
from topics.wire.outgoing import ws_messages as ws

BODIES: list[tuple[BodyDecoder[Any], dict[str, Any]]] = [
    (decode_config, {"type": "queue", "dead_letter": "d", "max_deliveries": 3}),
    (decode_write, {"records": [{"data": {"x": 1}, "tag": "t"}, {"data": [{"y": 2}]}], "config": {"ttl_ms": 5}}),
    (decode_write, {"records": [{"data": 1, "meta": {"k": {"z": 1}}}], "node": "n"}),
    (decode_diff, {"from_seq": 3, "node": ["a"]}),
    (decode_delete, {"match": ["tag", "Eq", "x"]}),
    (decode_router, {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x*"]}),
    (decode_watch, {"topics": {"a": {"from_seq": 1}, "b": {}}, "limit": 5}),
    (decode_claim, {"node": "n", "max": 5}),
    (decode_ack, {"node": "n", "seqs": [1, 2], "lease_ids": []}),
    (ws.decode_command, {"op": "publish", "topic": "a", "records": [{"data": {"x": 1}}], "request_id": {"u": 1}}),
    (ws.decode_command, {"op": "subscribe", "topics": {"a": {"tail": True}}}),
]


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize("struct", [*openapi._REQUESTS, *get_args(ws.Command)], ids=lambda struct: struct.__name__)
def test_every_struct_of_a_request_notices_unknown_fields(struct: type) -> None:
    def strict(info: msgspec.inspect.Type) -> None:
        match info:
            case msgspec.inspect.StructType(forbid_unknown_fields=forbids, fields=fields, cls=kind):
                assert forbids, f"{kind.__name__} must forbid unknown fields, so that they are noticed"
                for field in fields:
                    strict(field.type)
            case msgspec.inspect.Metadata(type=inner) | msgspec.inspect.CollectionType(item_type=inner):
                strict(inner)
            case msgspec.inspect.UnionType(types=types):
                for choice in types:
                    strict(choice)
            case msgspec.inspect.DictType(value_type=inner):
                strict(inner)

    strict(msgspec.inspect.type_info(struct))


@pytest.mark.parametrize(("decode", "body"), BODIES)
def test_known_bodies_get_one_look(
    decode: BodyDecoder[Any], body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_json, "look_again", None)
    unknown: list[Unknown] = []
    decode(json.dumps(body).encode(), unknown)
    assert not unknown


def test_records_with_unknown_fields_do_not_go_the_short_way() -> None:
    assert decode_records(b'{"records":[{"data":1}]}') is not None
    assert decode_records(b'{"records":[{"data":1,"tga":"x"}]}') is None
    assert decode_datas(b'{"records":[{"data":"%b","tga":1}]}' % (b"x" * 2000)) is None


OPEN = {"data", "meta", "request_id", "topics", "match", "filter"}  # what stands in these is no field of ours


def spoilt(rng: random.Random, value: Any, where: str = "") -> tuple[Any, set[str]]:
    """With unknown fields put into objects whose fields we know, and their paths."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        pairs = [spoilt(rng, item, where[:-1] + "[].") for item in value]
        return [item for item, _ in pairs], set().union(*(paths for _, paths in pairs))
    if not isinstance(value, dict):
        return value, set()
    fields: dict[str, Any] = {}
    paths: set[str] = set()
    for key, inner in value.items():
        if key == "topics" and isinstance(inner, dict):
            pairs_of = {name: spoilt(rng, start, f"{where}topics.*.") for name, start in inner.items()}
            fields[key] = {name: start for name, (start, _) in pairs_of.items()}
            paths |= set().union(*(found for _, found in pairs_of.values()))
        elif key in OPEN:
            fields[key] = inner
        else:
            fields[key], found = spoilt(rng, inner, f"{where}{key}.")
            paths |= found
    for _ in range(rng.randrange(3)):
        name = rng.choice(["max_delivries", "tga", "nöde", 'qu"ote', "x"])
        fields[name] = rng.choice([None, 1, "text", [1, {"a": 2}], {"type": 3}])
        paths.add(where + name)
    shuffled = list(fields.items())
    rng.shuffle(shuffled)
    return dict(shuffled), paths


@pytest.mark.parametrize(("decode", "body"), BODIES)
def test_a_body_means_the_same_without_what_nobody_knows(decode: BodyDecoder[Any], body: dict[str, Any]) -> None:
    rng = random.Random(7)
    expected = plain(decode(json.dumps(body).encode()))
    for _ in range(60):
        changed, paths = spoilt(rng, body)
        unknown: list[Unknown] = []
        given = decode(json.dumps(changed, ensure_ascii=rng.random() < 0.5).encode(), unknown)
        assert plain(given) == expected
        assert {field.path + field.name for field in unknown} == paths


def test_the_fault_that_matters_is_told() -> None:
    with pytest.raises(InvalidRequest, match="required field `node`"):
        decode_claim(b'{"nodee":"w"}')
    with pytest.raises(InvalidRequest, match="ttl_ms"):
        decode_config(b'{"tll_ms":5,"ttl_ms":"x"}')
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_diff(b'{"x":nul}')


def test_sentences_name_the_field_and_what_may_be_meant() -> None:
    unknown: list[Unknown] = []
    decode_write(
        b'{"records":[{"data":1,"tga":"x"},{"data":2,"tga":"y"}],"config":{"max_delivries":3,"zzzzz":1}}', unknown
    )
    assert warnings_of(unknown) == [
        'unknown field "records[].tga" is ignored; did you mean "tag"?',
        'unknown field "config.max_delivries" is ignored; did you mean "max_deliveries"?',
        'unknown field "config.zzzzz" is ignored',
    ]


def test_many_are_counted_and_long_ones_cut() -> None:
    unknown: list[Unknown] = []
    body = {"x" * 5000: 1} | {f"field{number}": 1 for number in range(30)}
    decode_diff(json.dumps(body).encode(), unknown)
    sentences = warnings_of(unknown)
    assert len(sentences) == SENTENCES_MAX + 1
    assert sentences[-1] == "21 more unknown fields are ignored"
    assert max(map(len, sentences)) < 200
    assert json.loads(with_warnings(b'{"a":1}', sentences)) == {"a": 1, "warnings": sentences}


# --- many fields -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_fields_outside_payloads_are_counted(seed: int) -> None:
    rng = random.Random(seed)

    def value(depth: int) -> tuple[Any, int]:
        """Some JSON, and the fields in it that are not below a payload's depth."""
        if depth > 6 or rng.random() < 0.4:
            return rng.choice([1, None, "plain", 'a:b"{[', "\\", "\\\\:", "ü", ""]), 0
        items = [value(depth + 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            return [item for item, _ in items], sum(count for _, count in items)
        fields = {rng.choice([f"k{at}", f"a:{at}", f'"{{{at}']): item for at, (item, _) in enumerate(items)}
        return fields, sum(count for _, count in items) + (len(fields) if depth < 4 else 0)

    made, count = value(1)
    assert count_fields(json.dumps(made, ensure_ascii=rng.random() < 0.5).encode()) == count


def test_a_body_of_nothing_but_unknown_fields_is_refused_before_it_is_taken_apart() -> None:
    bomb = b"{" + b",".join(b'"x%d":1' % number for number in range(100_001)) + b"}"
    with pytest.raises(InvalidRequest, match="at most 100000 fields"):
        decode_diff(bomb)
    unknown: list[Unknown] = []
    decode_diff(b"{" + b",".join(b'"x%d":1' % number for number in range(50_000)) + b"}", unknown)
    assert len(unknown) == 50_000


def test_the_largest_write_with_an_unknown_field_in_each_record_is_taken() -> None:
    record = {"data": {"a": {"b": 1}, "c": [1, 2]}, "tag": "t", "node": "n", "meta": {"k": "v"}, "tga": 1}
    unknown: list[Unknown] = []
    request = decode_write(json.dumps({"records": [record] * 10_000}).encode(), unknown)
    assert len(request.records) == 10_000
    assert warnings_of(unknown) == ['unknown field "records[].tga" is ignored; did you mean "tag"?']
