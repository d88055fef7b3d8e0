"""Settings: the documented table, and what a wrong value means."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.config import ClientSettings, Settings, client_settings_from, environment_names, settings_from
from topics.errors import ConfigError

# The tables of `docs/spec/http-api.md#sec-22` and `docs/spec/storage.md#sec-17`, and the client's own.
DOCUMENTED: dict[str, object] = {
    "TOPICS_HOST": "127.0.0.1",
    "TOPICS_PORT": 4000,
    "TOPICS_PORT_FILE": None,
    "TOPICS_API_KEYS": None,
    "TOPICS_ALLOW_INSECURE_NO_AUTH": False,
    "TOPICS_ALLOWED_HOSTS": None,
    "TOPICS_ALLOWED_ORIGINS": None,
    "TOPICS_PROBE_AUTH": False,
    "TOPICS_DATA_DIR": "./topics-data",
    "TOPICS_WAL_SHARDS": min(os.cpu_count() or 1, 8),
    "TOPICS_COLD_DIR": None,
    "TOPICS_SEGMENT_MAX_EVENTS": 10_000,
    "TOPICS_SEGMENT_MAX_BYTES": 67_108_864,
    "TOPICS_SEGMENT_MAX_AGE_MS": 3_600_000,
    "TOPICS_HOT_RETAIN_SEGMENTS": 4,
    "TOPICS_HOT_RETAIN_BYTES": 0,
    "TOPICS_MAX_BODY_BYTES": 67_108_864,
    "TOPICS_MAX_TOPICS": 100_000,
    "TOPICS_MAX_ROUTERS": 10_000,
    "TOPICS_MAX_WATCH_SESSIONS": 10_000,
    "TOPICS_MAX_SSE_CONNECTIONS": 10_000,
    "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": 1000,
    "TOPICS_MAX_INFLIGHT_PER_KEY": 1000,
    "TOPICS_CLIENT_SHARE": 0.25,
    "TOPICS_MAX_TOTAL_BYTES": 0,
    "TOPICS_TEST_MIN_HEARTBEAT_MS": None,
    "TOPICS_LOG": "info",
    "TOPICS_OTEL": False,
    "TOPICS_LOG_FORMAT": "text",
    "TOPICS_API_KEYS_FILE": None,
    "TOPICS_METRICS_TOPICS": 1000,
    "TOPICS_TLS_CERT": None,
    "TOPICS_TLS_KEY": None,
    "TOPICS_GZIP_MIN_BYTES": 0,
    "TOPICS_RECENT_CACHE_BYTES": 67_108_864,
    "TOPICS_WAL_FILE_BYTES": 67_108_864,
    "TOPICS_WAL_QUEUE": 4096,
    "TOPICS_WAL_MAX_BATCH_FRAMES": 16_384,
    "TOPICS_WAL_MAX_BATCH_BYTES": 8_388_608,
    "TOPICS_COMMIT_WINDOW_US": 1000,
    "TOPICS_SYNC_INTERVAL_MS": 50,
    "TOPICS_SEQ_RESERVE": 256,
    "TOPICS_CHECKPOINT_INTERVAL_MS": 5000,
    "TOPICS_SNAPSHOT_BYTES": 67_108_864,
    "TOPICS_SNAPSHOT_INTERVAL_MS": 60_000,
    "TOPICS_RELOCATE_INTERVAL_MS": 5000,
    "TOPICS_REWRITE_DEAD_RATIO": 0.5,
    "TOPICS_REWRITE_MIN_DEAD_BYTES": 1_048_576,
    "TOPICS_REWRITE_BYTES_PER_SEC": 16_777_216,
    "TOPICS_COLD_CACHE_BYTES": 16_777_216,
    "TOPICS_INDEX_CACHE_BYTES": 268_435_456,
    "TOPICS_COLD_IO_THREADS": 4,
    "TOPICS_WAL_DAMAGE": "quarantine",
    "TOPICS_SALVAGE": False,
}
OTHERS = {"TOPICS_URL", "TOPICS_API_KEY", "TOPICS_KERNEL"}


def value_of(variable: str, text: str) -> object:
    return getattr(settings_from({variable: text}).settings, attribute_of(variable))


def attribute_of(variable: str) -> str:
    return variable.removeprefix("TOPICS_").lower()


@pytest.mark.parametrize(("variable", "default"), DOCUMENTED.items())
def test_every_documented_variable_has_its_documented_default(variable: str, default: object) -> None:
    assert getattr(Settings(), attribute_of(variable)) == default


def test_no_variable_exists_that_is_not_documented() -> None:
    assert set(environment_names()) == set(DOCUMENTED) | OTHERS


@pytest.mark.parametrize("variable", DOCUMENTED)
@pytest.mark.parametrize("blank", ["", "   ", "\t"])
def test_a_blank_value_counts_as_unset(variable: str, blank: str) -> None:
    resolved = settings_from({variable: blank})
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {"default"}


def test_blanks_around_a_value_are_trimmed() -> None:
    assert value_of("TOPICS_PORT", " 5000\n") == 5000
    assert value_of("TOPICS_SALVAGE", " 1 ") is True


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False)])
def test_the_four_spellings_of_a_boolean(text: str, value: bool) -> None:
    assert value_of("TOPICS_PROBE_AUTH", text) is value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TOPICS_PORT", "-1"),
        ("TOPICS_PORT", "+1"),
        ("TOPICS_PORT", "4_000"),
        ("TOPICS_PORT", "0x10"),
        ("TOPICS_PORT", "1.0"),
        ("TOPICS_PORT", "1e3"),
        ("TOPICS_PORT", "four"),
        ("TOPICS_PORT", "٤"),  # a digit, but not a decimal one of ours
        ("TOPICS_PROBE_AUTH", "yes"),
        ("TOPICS_PROBE_AUTH", "True"),
        ("TOPICS_PROBE_AUTH", "2"),
        ("TOPICS_WAL_DAMAGE", "ignore"),
        ("TOPICS_LOG", "loud"),
        ("TOPICS_REWRITE_DEAD_RATIO", "-0.5"),
        ("TOPICS_REWRITE_DEAD_RATIO", "nan"),
        ("TOPICS_REWRITE_DEAD_RATIO", "half"),
        ("TOPICS_DATA_DIR", "a\x00b"),
    ],
)
def test_a_bad_value_is_refused_naming_variable_value_and_what_is_allowed(variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_from({variable: text})
    message = str(refused.value)
    assert message.startswith(f"{variable}: {text!r} is not allowed; it takes ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("TOPICS_PORT", "70000", 65_535),
        ("TOPICS_WAL_SHARDS", "900", 64),
        ("TOPICS_SEGMENT_MAX_EVENTS", "0", 1),
        ("TOPICS_SEGMENT_MAX_BYTES", "99999999999", 2_147_483_648),
        ("TOPICS_REWRITE_DEAD_RATIO", "1.5", 1.0),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "0", 1),
        ("TOPICS_TEST_MIN_HEARTBEAT_MS", "5000", 1000),
        ("TOPICS_MAX_TOTAL_BYTES", "9" * 5000, 2**63 - 1),
    ],
)
def test_a_value_out_of_range_is_clamped_and_reported(variable: str, text: str, value: object) -> None:
    resolved = settings_from({variable: text})
    assert getattr(resolved.settings, attribute_of(variable)) == value
    (warning,) = resolved.warnings
    assert variable in warning
    assert str(value) in warning


def test_values_in_range_are_not_reported() -> None:
    assert settings_from({"TOPICS_PORT": "65535", "TOPICS_MAX_BODY_BYTES": "0"}).warnings == ()


def test_zero_shards_asks_for_the_default_without_a_word() -> None:
    resolved = settings_from({"TOPICS_WAL_SHARDS": "0"})
    assert resolved.settings.wal_shards == DOCUMENTED["TOPICS_WAL_SHARDS"]
    assert resolved.warnings == ()
    assert resolved.origins["wal_shards"] == "default"


def test_an_unknown_name_is_refused_naming_its_value_and_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError) as refused:
        settings_from({"TOPICS_WAL_SHARD": "4"})
    assert str(refused.value) == (
        "TOPICS_WAL_SHARD (set to '4') is not a known variable; the nearest known one is TOPICS_WAL_SHARDS"
    )


def test_an_unknown_name_is_refused_even_when_it_is_blank() -> None:
    with pytest.raises(ConfigError):
        settings_from({"TOPICS_NOPE": ""})


def test_a_misspelt_key_variable_does_not_show_the_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        settings_from({"TOPICS_APIKEYS": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert "TOPICS_API_KEYS" in str(refused.value)


@pytest.mark.parametrize("name", ["TOPICS_TEST_ANYTHING", "TOPICSX", "PATH", "topics_port", "XTOPICS_PORT"])
def test_names_of_others_are_ignored(name: str) -> None:
    assert settings_from({name: "what ever"}).settings == Settings()


def test_a_server_knows_the_clients_variables_and_ignores_them() -> None:
    assert settings_from({"TOPICS_URL": "\x00 nonsense", "TOPICS_API_KEY": "k"}).settings == Settings()


def test_a_client_reads_its_own_variables_and_refuses_unknown_ones() -> None:
    environ = {"TOPICS_URL": "http://host:1", "TOPICS_API_KEY": "k", "TOPICS_PORT": "nonsense"}
    assert client_settings_from(environ).settings == ClientSettings(url="http://host:1", api_key="k")
    with pytest.raises(ConfigError, match="TOPICS_URL"):
        client_settings_from({"TOPICS_ULR": "x"})


def test_origins_tell_the_environment_from_defaults() -> None:
    origins = settings_from({"TOPICS_PORT": "4000"}).origins
    assert origins["port"] == "env"
    assert origins["host"] == "default"


def test_keywords_give_the_same_settings_as_the_environment(tmp_path: Path) -> None:
    by_keyword = Settings.from_kwargs(data_dir=tmp_path, wal_shards=2, salvage=True, rewrite_dead_ratio=1, port=None)
    by_environment = settings_from(
        {
            "TOPICS_DATA_DIR": str(tmp_path),
            "TOPICS_WAL_SHARDS": "2",
            "TOPICS_SALVAGE": "1",
            "TOPICS_REWRITE_DEAD_RATIO": "1",
        }
    ).settings
    assert by_keyword == by_environment


@pytest.mark.parametrize(
    "keywords",
    [
        {"port": "4000"},
        {"port": True},
        {"port": -1},
        {"port": 1.0},
        {"salvage": 1},
        {"rewrite_dead_ratio": float("nan")},
        {"rewrite_dead_ratio": True},
        {"wal_damage": "ignore"},
        {"data_dir": b"bytes"},
    ],
)
def test_a_keyword_of_the_wrong_type_or_value_is_refused(keywords: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(keywords))):
        Settings.from_kwargs(**keywords)


def test_keywords_are_clamped_like_the_environment() -> None:
    assert Settings.from_kwargs(wal_shards=900, segment_max_events=0).wal_shards == 64


def test_an_unknown_keyword_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="nearest known one is wal_shards"):
        Settings.from_kwargs(wal_shard=2)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def test_secrets_do_not_appear_when_settings_are_printed() -> None:
    shown = repr(Settings(api_keys="hunter2")) + repr(ClientSettings(api_key="hunter2"))
    assert "hunter2" not in shown
    assert "api_keys='(set)'" in shown


@given(st.sampled_from(sorted(DOCUMENTED)), st.text(max_size=20))
def test_any_text_is_a_value_or_one_sentence(variable: str, text: str) -> None:
    try:
        settings_from({variable: text})
    except ConfigError as refused:
        assert variable in str(refused)
        assert len(str(refused).splitlines()) == 1
