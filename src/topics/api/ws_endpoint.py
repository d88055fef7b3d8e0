"""WebSocket endpoint: the handshake and the caps; what follows is a `Socket` (http-api.md section 18)."""

from __future__ import annotations

from topics.api.call import Call
from topics.api.sockets import Socket
from topics.api.watch import WatchServices
from topics.errors import InvalidRequest
from topics.net.ws import handshake_problem


class WsEndpoint:
    def __init__(self, services: WatchServices) -> None:
        self._services = services

    def websocket(self, call: Call) -> None:
        problem = handshake_problem(call.request)
        if problem is not None:
            raise InvalidRequest(problem)
        holder = call.holder
        self._services.streams.check_room(holder)
        sink = call.responder.upgrade_websocket()
        call.end()
        Socket(self._services, sink, call.key).begin(holder)
