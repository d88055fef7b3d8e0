"""HTTP/1.1 framing and smuggling cases: raw bytes, and what a strict server must make of them.

Each case is a whole conversation of the client's: the requests that must be taken from it, in order, and whether the
bytes behind them must be refused (400 and the end of the connection). Section numbers are RFC 9112's unless another
RFC is named. Used against the reader alone and over real sockets.
"""

from __future__ import annotations

from typing import NamedTuple


class Taken(NamedTuple):
    method: str
    path: bytes
    body: bytes = b""


class FramingCase(NamedTuple):
    name: str
    raw: bytes
    taken: tuple[Taken, ...]
    refused: bool


H = b"Host: a\r\n"
GET = Taken("GET", b"/")
POST = Taken("POST", b"/")
HELLO = Taken("POST", b"/", b"hello")
NEXT = b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"  # what a smuggled or a following request looks like
AFTER = Taken("GET", b"/next")


def _get(fields: bytes, *, target: bytes = b"/", line: bytes | None = None) -> bytes:
    return (line or b"GET %b HTTP/1.1\r\n" % target) + H + fields + b"\r\n"


def _post(fields: bytes, body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\n" + H + fields + b"\r\n" + body


def _chunked(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked\r\n", body)


def _takes(name: str, raw: bytes, *taken: Taken) -> FramingCase:
    return FramingCase(name, raw, taken, refused=False)


def _refuses(name: str, raw: bytes, *taken: Taken) -> FramingCase:
    return FramingCase(name, raw, taken, refused=True)


REQUEST_LINE_CASES = [  # sections 2.2, 3
    _takes("origin form", _get(b""), GET),
    _takes("one empty line before a request", b"\r\n" + _get(b""), GET),
    _takes("four empty lines before a request", b"\r\n" * 4 + _get(b""), GET),
    _refuses("five empty lines before a request", b"\r\n" * 5 + _get(b"")),
    _refuses("an empty line that is a bare LF", b"\n" + _get(b"")),
    _refuses("space before the method", b" " + _get(b"")),
    _refuses("no spaces at all", b"GET/HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("HTTP/0.9 request", b"GET /\r\n\r\n"),
    _refuses("two spaces before the target", b"GET  / HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("two spaces before the version", b"GET /  HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("tab instead of space", b"GET\t/ HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("vertical tab in the line", b"GET /\x0b HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("space after the version", b"GET / HTTP/1.1 \r\n" + H + b"\r\n"),
    _refuses("space inside the target", b"GET /a b HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("lower-case version", b"GET / http/1.1\r\n" + H + b"\r\n"),
    _refuses("version 2.0 in HTTP/1 syntax", b"GET / HTTP/2.0\r\n" + H + b"\r\n"),
    _refuses("version 1.2", b"GET / HTTP/1.2\r\n" + H + b"\r\n"),
    _refuses("version 0.9", b"GET / HTTP/0.9\r\n" + H + b"\r\n"),
    _refuses("version without minor", b"GET / HTTP/1\r\n" + H + b"\r\n"),
    _refuses("version with two-digit minor", b"GET / HTTP/1.10\r\n" + H + b"\r\n"),
    _refuses("another protocol", b"GET / ICY/1.1\r\n" + H + b"\r\n"),
    _refuses("bare LF after the request line", b"GET / HTTP/1.1\n" + H + b"\r\n"),
    _refuses("bare CR after the request line", b"GET / HTTP/1.1\rX" + H + b"\r\n"),
    _refuses("CR CR LF after the request line", b"GET / HTTP/1.1\r\r\n" + H + b"\r\n"),
    _refuses("NUL in the target", b"GET /\x00 HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("DEL in the target", b"GET /\x7f HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("fragment in the target", b"GET /a#b HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("method with a separator", b"G(T / HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("method of 33 bytes", b"M" * 33 + b" / HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    _refuses("garbage without a line end", b"\xff\xfe\xfd\xfc"),
    _refuses("HTTP/2 preface with a wrong end", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"),
    _takes("method that nobody registered", b"BREW / HTTP/1.1\r\n" + H + b"\r\n", Taken("BREW", b"/")),
    _takes("lower-case method is another method", b"get / HTTP/1.1\r\n" + H + b"\r\n", Taken("get", b"/")),
    _takes("raw > in the path", _get(b"", target=b"/v0/routers/a->b"), Taken("GET", b"/v0/routers/a->b")),
    _takes("percent escapes are left alone", _get(b"", target=b"/a%2Fb%zz"), Taken("GET", b"/a%2Fb%zz")),
    _takes("raw UTF-8 in the path", _get(b"", target=b"/\xc3\xa9"), Taken("GET", b"/\xc3\xa9")),
    _takes("double slash is kept", _get(b"", target=b"//a//b/"), Taken("GET", b"//a//b/")),
    _takes("query is cut at the first question mark", _get(b"", target=b"/a?b?c"), Taken("GET", b"/a")),
]

TARGET_CASES = [  # section 3.2
    _takes("absolute form", _get(b"", target=b"http://other:80/a?b"), Taken("GET", b"/a")),
    _takes("absolute form, upper-case scheme", _get(b"", target=b"HTTP://other/a"), Taken("GET", b"/a")),
    _takes("absolute form without a path", _get(b"", target=b"http://other"), GET),
    _takes("absolute form with only a query", _get(b"", target=b"http://other?x"), GET),
    _takes("asterisk form of OPTIONS", b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n", Taken("OPTIONS", b"*")),
    _refuses("asterisk form of GET", _get(b"", target=b"*")),
    _refuses("authority form of GET", _get(b"", target=b"a:80")),
    _refuses("CONNECT in authority form", b"CONNECT a:80 HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("CONNECT with a path", b"CONNECT / HTTP/1.1\r\n" + H + b"\r\n"),
    _refuses("relative target", _get(b"", target=b"a/b")),
    _refuses("absolute form of another scheme", _get(b"", target=b"ftp://a/b")),
    _refuses("absolute form with user information", _get(b"", target=b"http://u@a/b")),
    _refuses("absolute form without an authority", _get(b"", target=b"http:///b")),
]

HOST_CASES = [  # section 3.2, RFC 9110 section 7.2
    _refuses("no Host", b"GET / HTTP/1.1\r\n\r\n"),
    _refuses("no Host with the absolute form", b"GET http://a/ HTTP/1.1\r\n\r\n"),
    _refuses("two Hosts", _get(b"Host: b\r\n")),
    _refuses("the same Host twice", _get(b"Host: a\r\n")),
    _refuses("Host with a path", b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    _refuses("Host with a list", b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    _refuses("Host with user information", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    _refuses("Host with a space", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
    _refuses("Host with a bad port", b"GET / HTTP/1.1\r\nHost: a:8o\r\n\r\n"),
    _takes("Host with a port", b"GET / HTTP/1.1\r\nHost: a:80\r\n\r\n", GET),
    _takes("Host that is an IPv6 address", b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", GET),
    _takes("empty Host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", GET),
]

FIELD_CASES = [  # section 5
    _takes("no space after the colon", _get(b"X:1\r\n"), GET),
    _takes("white space around a value", _get(b"X: \t 1 \t \r\n"), GET),
    _takes("empty value", _get(b"X:\r\n"), GET),
    _takes("every token character in a name", _get(b"!#$%&'*+-.^_`|~09azAZ: 1\r\n"), GET),
    _takes("bytes above ASCII in a value", _get(b"X: \xe9\xff\r\n"), GET),
    _refuses("space before the colon", _get(b"X : 1\r\n")),
    _refuses("tab before the colon", _get(b"X\t: 1\r\n")),
    _refuses("space inside a name", _get(b"X Y: 1\r\n")),
    _refuses("empty name", _get(b": 1\r\n")),
    _refuses("line without a colon", _get(b"X\r\n")),
    _refuses("separator in a name", _get(b"X(: 1\r\n")),
    _refuses("byte above ASCII in a name", _get(b"X\xe9: 1\r\n")),
    _refuses("NUL in a name", _get(b"X\x00: 1\r\n")),
    _refuses("folded line with a space", _get(b"X: 1\r\n 2\r\n")),
    _refuses("folded line with a tab", _get(b"X: 1\r\n\t2\r\n")),
    _refuses("folded first line", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    _refuses("folded empty line", _get(b"X: 1\r\n \r\n")),
    _refuses("NUL in a value", _get(b"X: 1\x002\r\n")),
    _refuses("control character in a value", _get(b"X: 1\x012\r\n")),
    _refuses("escape in a value", _get(b"X: \x1b[0m\r\n")),
    _refuses("DEL in a value", _get(b"X: 1\x7f\r\n")),
    _refuses("form feed in a value", _get(b"X: 1\x0c2\r\n")),
    _refuses("bare CR in a value", _get(b"X: 1\r2\r\n")),
    _refuses("bare CR before a hidden field", _get(b"X: 1\rContent-Length: 5\r\n")),
    _refuses("bare LF after a field", _get(b"X: 1\n")),
    _refuses("bare LF before a hidden field", _get(b"X: 1\nContent-Length: 5\r\n")),
    _refuses("bare LF as the end of the head", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    _refuses("everything with bare LF", b"GET / HTTP/1.1\nHost: a\n\n"),
    _refuses("CR CR LF after a field", _get(b"X: 1\r\r\n")),
    _refuses("129 fields", _get(b"X: 1\r\n" * 128)),
    _takes("128 fields", _get(b"X: 1\r\n" * 127), GET),
    _refuses("head of more than 128 KiB", _get(b"X: " + b"a" * 131_072 + b"\r\n")),
    _refuses("endless request line", b"GET /" + b"a" * 140_000),
    _takes("head of just under 128 KiB", _get(b"X: " + b"a" * 131_000 + b"\r\n"), GET),
]

LENGTH_CASES = [  # sections 6.2, 6.3
    _takes("body of a length", _post(b"Content-Length: 5\r\n", b"hello") + NEXT, HELLO, AFTER),
    _takes("length in any letter case", _post(b"cOnTeNt-LeNgTh:5\r\n", b"hello"), HELLO),
    _takes("length with leading zeros", _post(b"Content-Length: 005\r\n", b"hello"), HELLO),
    _takes("length 0", _post(b"Content-Length: 0\r\n", b"") + NEXT, POST, AFTER),
    _takes("no length is no body", _post(b"", b"") + NEXT, POST, AFTER),
    _takes("GET with a body", _get(b"Content-Length: 3\r\n") + b"abc" + NEXT, GET._replace(body=b"abc"), AFTER),
    _takes("body that looks like a request", _post(b"Content-Length: 31\r\n", NEXT), POST._replace(body=NEXT)),
    _refuses("two different lengths", _post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello!")),
    _refuses("the same length twice", _post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello")),
    _refuses("a list of equal lengths", _post(b"Content-Length: 5, 5\r\n", b"hello")),
    _refuses("a list of different lengths", _post(b"Content-Length: 5, 6\r\n", b"hello!")),
    _refuses("length with a sign", _post(b"Content-Length: +5\r\n", b"hello")),
    _refuses("negative length", _post(b"Content-Length: -5\r\n", b"hello")),
    _refuses("hexadecimal length", _post(b"Content-Length: 0x5\r\n", b"hello")),
    _refuses("length with a fraction", _post(b"Content-Length: 5.0\r\n", b"hello")),
    _refuses("length with an exponent", _post(b"Content-Length: 5e0\r\n", b"hello")),
    _refuses("length with an underscore", _post(b"Content-Length: 1_0\r\n", b"hellohello")),
    _refuses("length with a space inside", _post(b"Content-Length: 1 0\r\n", b"hellohello")),
    _refuses("length in other digits", _post(b"Content-Length: \xd9\xa5\r\n", b"hello")),
    _refuses("empty length", _post(b"Content-Length:\r\n", b"hello")),
    _refuses("quoted length", _post(b'Content-Length: "5"\r\n', b"hello")),
    _takes("length with many leading zeros", _post(b"Content-Length: %b5\r\n" % (b"0" * 30), b"hello"), HELLO),
    _refuses("two lengths beyond 2**64", _post(b"Content-Length: 18446744073709551617\r\n" * 2, b"hello")),
    _refuses("length hidden behind a bad name", _post(b"Content-Length : 5\r\n", b"hello")),
    _refuses("length hidden in a fold", _post(b"X: 1\r\n Content-Length: 5\r\n", b"hello")),
    _refuses("garbage behind a body", _post(b"Content-Length: 5\r\n", b"hello") + b"\x00", HELLO),
    _takes("one empty line behind a body", _post(b"Content-Length: 1\r\n", b"x") + b"\r\n" + NEXT,
           POST._replace(body=b"x"), AFTER),
]  # fmt: skip

CODING_CASES = [  # sections 6.1, 6.3
    _takes("chunked", _chunked(b"5\r\nhello\r\n0\r\n\r\n") + NEXT, HELLO, AFTER),
    _takes("chunked in any letter case", _post(b"Transfer-Encoding: CHUNKED\r\n", b"0\r\n\r\n"), POST),
    _takes("white space around chunked", _post(b"Transfer-Encoding:\t chunked \r\n", b"0\r\n\r\n"), POST),
    _refuses("length and coding", _post(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n")),
    _refuses("coding and length", _post(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n")),
    _refuses("coding and length 0", _post(b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", b"0\r\n\r\n")),
    _refuses("chunked twice", _post(b"Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n")),
    _refuses("chunked in two fields", _post(b"Transfer-Encoding: chunked\r\n" * 2, b"0\r\n\r\n")),
    _refuses("chunked not last", _post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n")),
    _refuses("another coding before chunked", _post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n")),
    _refuses("identity", _post(b"Transfer-Encoding: identity\r\n", b"")),
    _refuses("identity with a length", _post(b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", b"hello")),
    _refuses("unknown coding", _post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n")),
    _refuses("chunked with a parameter", _post(b"Transfer-Encoding: chunked;q=1\r\n", b"0\r\n\r\n")),
    _refuses("quoted chunked", _post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n")),
    _refuses("empty coding", _post(b"Transfer-Encoding:\r\n", b"")),
    _refuses("coding with a vertical tab", _post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n")),
    _refuses("coding with a NUL", _post(b"Transfer-Encoding: chunked\x00\r\n", b"0\r\n\r\n")),
    _refuses("coding hidden behind a bad name", _post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n")),
    _refuses("coding in HTTP/1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
]

CHUNK_CASES = [  # section 7.1
    _takes("several chunks", _chunked(b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), HELLO),
    _takes("upper-case hexadecimal", _chunked(b"A\r\n0123456789\r\n0\r\n\r\n"), POST._replace(body=b"0123456789")),
    _takes("lower-case hexadecimal", _chunked(b"a\r\n0123456789\r\n0\r\n\r\n"), POST._replace(body=b"0123456789")),
    _takes("size with leading zeros", _chunked(b"0005\r\nhello\r\n000\r\n\r\n"), HELLO),
    _takes("extension", _chunked(b"5;a=b\r\nhello\r\n0;c\r\n\r\n"), HELLO),
    _takes("extension after white space", _chunked(b"5 ; a=b\r\nhello\r\n0\r\n\r\n"), HELLO),
    _takes("trailer", _chunked(b"5\r\nhello\r\n0\r\nX: 1\r\nY: 2\r\n\r\n") + NEXT, HELLO, AFTER),
    _takes("trailer that would change the framing", _chunked(b"0\r\nContent-Length: 50\r\n\r\n") + NEXT, POST, AFTER),
    _takes(
        "line ends inside a chunk", _chunked(b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n"), POST._replace(body=b"\r\n0\r\n\r\n")
    ),
    _refuses("size that is not hexadecimal", _chunked(b"g\r\nhello\r\n0\r\n\r\n")),
    _refuses("empty size", _chunked(b"\r\nhello\r\n0\r\n\r\n")),
    _refuses("size with 0x", _chunked(b"0x5\r\nhello\r\n0\r\n\r\n")),
    _refuses("size with a sign", _chunked(b"+5\r\nhello\r\n0\r\n\r\n")),
    _refuses("negative size", _chunked(b"-5\r\nhello\r\n0\r\n\r\n")),
    _refuses("size with an underscore", _chunked(b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n")),
    _refuses("space before the size", _chunked(b" 5\r\nhello\r\n0\r\n\r\n")),
    _refuses("bare LF after the size", _chunked(b"5\nhello\r\n0\r\n\r\n")),
    _refuses("bare CR after the size", _chunked(b"5\rXhello\r\n0\r\n\r\n")),
    _refuses("bare LF after the data", _chunked(b"5\r\nhello\n0\r\n\r\n")),
    _refuses("no line end after the data", _chunked(b"5\r\nhello0\r\n\r\n")),
    _refuses("more data than the size", _chunked(b"5\r\nhello!\r\n0\r\n\r\n")),
    _refuses("bare LF at the end", _chunked(b"5\r\nhello\r\n0\r\n\n")),
    _refuses("bare LF after the last size", _chunked(b"5\r\nhello\r\n0\n\r\n")),
    _refuses("LF hidden in an extension", _chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n")),
    _refuses("CR hidden in an extension", _chunked(b"5;a\rb\r\nhello\r\n0\r\n\r\n")),
    _refuses("NUL in an extension", _chunked(b"5;a\x00\r\nhello\r\n0\r\n\r\n")),
    _refuses("extension of 600 bytes", _chunked(b"5;" + b"a" * 600 + b"\r\nhello\r\n0\r\n\r\n")),
    _refuses("trailer with a bad name", _chunked(b"0\r\nX : 1\r\n\r\n")),
    _refuses("folded trailer", _chunked(b"0\r\nX: 1\r\n 2\r\n\r\n")),
    _refuses("trailer with a bare LF", _chunked(b"0\r\nX: 1\n\r\n")),
    _refuses("trailer of 9000 bytes", _chunked(b"0\r\nX: " + b"a" * 9000 + b"\r\n\r\n")),
    _refuses("chunks of one byte without end", _chunked(b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")),
]

CONNECTION_CASES = [  # section 9
    _takes("two requests in a row", NEXT + NEXT, AFTER, AFTER),
    _takes("POST then GET", _post(b"Content-Length: 2\r\n", b"ab") + NEXT, POST._replace(body=b"ab"), AFTER),
    _refuses("garbage behind a request", NEXT + b"\x01\x02", AFTER),
    _refuses("a bad request behind a good one", NEXT + b"GET / HTTP/1.1\r\n\r\n", AFTER),
    _takes("nothing is read behind Connection: close", _get(b"Connection: close\r\n") + b"\x00garbage", GET),
    _takes("HTTP/1.0 without Host", b"GET / HTTP/1.0\r\n\r\n", GET),
    _takes("nothing is read behind HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n" + NEXT, GET),
    _takes("HTTP/1.0 with keep-alive", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + NEXT, GET, AFTER),
    _takes("HTTP/1.0 with a length", b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", POST._replace(body=b"ab")),
    _takes("Upgrade: h2c is ignored",
           _get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n") + NEXT,
           GET, AFTER),
    _takes("Upgrade with a body", _post(b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 2\r\n", b"ab") + NEXT,
           POST._replace(body=b"ab"), AFTER),
    _takes("an unknown expectation is ignored", _get(b"Expect: miracles\r\n"), GET),
]  # fmt: skip

FRAMING_CASES: list[FramingCase] = [
    *REQUEST_LINE_CASES,
    *TARGET_CASES,
    *HOST_CASES,
    *FIELD_CASES,
    *LENGTH_CASES,
    *CODING_CASES,
    *CHUNK_CASES,
    *CONNECTION_CASES,
]
