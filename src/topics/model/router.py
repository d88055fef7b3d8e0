"""Router: a standing order to copy one topic's records into another. Its progress belongs to core, not here.

Behind it: what calls about routers answer."""

from typing import Any, Literal

import msgspec

from topics.model.names import RouterName, TagMatch, TopicName

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


class RouterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """GET of a router. PUT answers the same with `created` in place of `forwarded_total`."""

    router: RouterName
    source: TopicName
    dest: TopicName
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    created: bool | None = None
    forwarded_total: int | None = None


class RouterSummary(msgspec.Struct, frozen=True):
    router: RouterName
    source: TopicName
    dest: TopicName
    guarantee: Guarantee
    forwarded_total: int


class RouterPage(msgspec.Struct, frozen=True, omit_defaults=True):
    routers: list[RouterSummary]
    next_cursor: str | None = None


class DeleteRouterResult(msgspec.Struct, frozen=True):
    router: RouterName
    deleted: bool
