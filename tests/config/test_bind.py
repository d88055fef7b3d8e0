"""The address to listen on."""

import pytest

from topics.config import BindAddress, Settings, bind_address
from topics.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "address", "spelled"),
    [
        (Settings(), BindAddress("127.0.0.1", 4000), "127.0.0.1:4000"),
        (Settings(port=0), BindAddress("127.0.0.1", 0), "127.0.0.1:0"),
        (Settings(host="0.0.0.0", port=80), BindAddress("0.0.0.0", 80), "0.0.0.0:80"),
        (Settings(host="localhost:81", port=9), BindAddress("localhost", 81), "localhost:81"),
        (Settings(host="[::1]:4000", port=9), BindAddress("::1", 4000), "[::1]:4000"),
        (Settings(host=":82"), BindAddress("127.0.0.1", 82), "127.0.0.1:82"),
    ],
)
def test_host_and_port_combine(settings: Settings, address: BindAddress, spelled: str) -> None:
    assert bind_address(settings) == address
    assert str(address) == spelled


@pytest.mark.parametrize("host", ["localhost:", "localhost:x", "localhost:70000", "::1", "[::1]", "a:1:2", "[]:1"])
def test_a_host_with_a_colon_that_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="TOPICS_HOST"):
        bind_address(Settings(host=host))
