"""Router: a standing order to copy one topic's records into another. Its progress belongs to core, not here."""

from typing import Any, Literal

import msgspec

from topics.model.names import TagMatch

Guarantee = Literal["at_least_once", "exactly_once"]


class RouterDef(msgspec.Struct, frozen=True, kw_only=True):
    """`source` and `dest` are fixed for the router's life; everything else may be replaced."""

    name: str
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    filter: TagMatch | None = None

    def to_stored(self) -> dict[str, Any]:
        """The definition's keys of a RouterCreate body; `filter` is left out when there is none."""
        stored: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__ if name != "filter"}
        if self.filter is not None:
            stored["filter"] = self.filter.to_stored()
        return stored

    def to_json(self) -> dict[str, Any]:
        """The keys that responses echo, `router` first; `create_dest` is not among them."""
        return {
            "router": self.name,
            "source": self.source,
            "dest": self.dest,
            "preserve_node": self.preserve_node,
            "preserve_tag": self.preserve_tag,
            "filter": None if self.filter is None else self.filter.to_json(),
            "allow_cycle": self.allow_cycle,
            "guarantee": self.guarantee,
        }


def router_from_stored(stored: dict[str, Any]) -> RouterDef:
    """From a RouterCreate body or a snapshot entry. Raises msgspec.ValidationError or KeyError on a foreign shape."""
    match = stored.get("filter")
    fields = {name: stored[name] for name in RouterDef.__struct_fields__ if name != "filter"}
    definition = msgspec.convert(fields, RouterDef)
    return definition if match is None else msgspec.structs.replace(definition, filter=TagMatch.from_stored(match))
