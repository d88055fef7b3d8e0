"""Router rules: what may be defined (semantics.md section 15.1; order of checks: http-api.md section 16.1).

A refusal raises and has changed nothing. Topics that do not exist yet have no edges, so they close no cycle."""

from __future__ import annotations

from collections import deque

from topics.core.router import Router, RouterTable
from topics.core.state import State
from topics.errors import InvalidRequest, RouterCycle, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.model.names import check_router_name, check_topic_name
from topics.model.router import RouterDef


def check_router(state: State, definition: RouterDef, *, routers_max: int) -> Router | None:
    """The router that this definition would update, or None for a new one."""
    check_router_name(definition.name)
    if definition.source == definition.dest:
        raise InvalidRequest("a router's source and dest must differ")
    check_topic_name(definition.source)
    check_topic_name(definition.dest)
    if not definition.create_dest and definition.dest not in state.topics:
        raise TopicNotFound(definition.dest)
    _check_fan_in(state, definition)
    known = state.routers.get(definition.name)
    if known is None:
        if routers_max and len(state.routers) >= routers_max:
            raise Throttled.cap("max_routers", max=routers_max)
    elif (known.definition.source, known.definition.dest) != (definition.source, definition.dest):
        raise TopicExistsIncompatible.repoint(
            definition.name, existing_source=known.definition.source, existing_dest=known.definition.dest
        )
    if known is None and not definition.allow_cycle:  # an update adds no edge, so it closes nothing
        cycle = closed_cycle(state.routers, definition)
        if cycle is not None:
            raise RouterCycle(cycle)
    return known


def _check_fan_in(state: State, definition: RouterDef) -> None:
    dest = state.topics.get(definition.dest)
    if dest is None:
        return
    for other in state.routers.into(dest.id):
        if other.name != definition.name and other.definition.source != definition.source:
            raise TopicExistsIncompatible.fan_in(definition.dest)


def closed_cycle(routers: RouterTable, definition: RouterDef) -> list[str] | None:
    """The shortest way from dest back to source, with the new edge in front; None if there is none."""
    edges: dict[str, list[str]] = {}
    for router in routers:
        edges.setdefault(router.definition.source, []).append(router.definition.dest)
    came_from: dict[str, str] = {definition.dest: definition.source}
    reached = deque([definition.dest])
    while reached:
        topic = reached.popleft()
        if topic == definition.source:
            return _path(came_from, definition)
        for following in edges.get(topic, ()):
            if following not in came_from:
                came_from[following] = topic
                reached.append(following)
    return None


def _path(came_from: dict[str, str], definition: RouterDef) -> list[str]:
    path = [definition.source]
    while path[-1] != definition.dest:
        path.append(came_from[path[-1]])
    return [definition.source, *reversed(path)]
