"""TLS on the listener: certificate and key from PEM files, HTTP/2 and HTTP/1.1 by ALPN."""

from __future__ import annotations

import ssl

from topics.errors import ConfigError


def tls_context(*, cert_file: str | None, key_file: str | None) -> ssl.SSLContext | None:
    """The context for both files, None for neither; anything else ends the process before it listens."""
    if cert_file is None and key_file is None:
        return None
    if cert_file is None or key_file is None:
        raise ConfigError("TOPICS_TLS_CERT and TOPICS_TLS_KEY go together: set both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the TLS files {cert_file!r} and {key_file!r}: {error}") from error
    return context


def _no_password() -> str:
    """Nobody is there to type one; OpenSSL would ask the terminal."""
    raise OSError("the key is encrypted")
