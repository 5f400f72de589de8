"""Which header fields pass."""

from router.headers import is_websocket, printable, to_client, to_replica


def test_hop_by_hop_fields_end_here_both_ways() -> None:
    """F31"""
    fields = [
        (b"connection", b"close, X-A"),
        (b"x-a", b"1"),
        (b"te", b"trailers"),
        (b"trailer", b"expires"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-connection", b"keep-alive"),
        (b"proxy-authorization", b"Basic x"),
        (b"upgrade", b"h2c"),
        (b"transfer-encoding", b"chunked"),
        (b"x-b", b"2"),
    ]
    assert to_replica(fields) == [(b"x-b", b"2")]
    assert to_client(fields) == [(b"x-b", b"2")]


def test_connection_cannot_take_away_what_the_next_hop_relies_on() -> None:
    """F175"""
    fields = [
        (b"connection", b"Authorization, X-Forwarded-For, X-Session-ID, x-other"),
        (b"authorization", b"Bearer k"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"x-session-id", b"s"),
        (b"x-other", b"o"),
    ]
    assert to_replica(fields) == fields[1:4]


def test_our_own_names_are_dropped_and_end_to_end_fields_kept_in_order() -> None:
    """F26, F166"""
    fields = [
        (b"host", b"router"),
        (b"content-length", b"3"),
        (b"expect", b"100-continue"),
        (b"x-router-replica", b"evil:1"),
        (b"authorization", b"Bearer k"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]
    assert to_replica(fields) == fields[4:]
    assert (b"content-length", b"3") in to_client(fields)


def test_a_credential_replaces_the_client_s() -> None:
    assert to_replica([(b"authorization", b"Bearer mine"), (b"a", b"b")], b"Bearer ours") == [
        (b"a", b"b"),
        (b"authorization", b"Bearer ours"),
    ]


def test_only_websocket_is_an_upgrade_that_cannot_be_ignored() -> None:
    """F29"""
    assert is_websocket([(b"upgrade", b"WebSocket")])
    assert not is_websocket([(b"upgrade", b"h2c")])


def test_values_of_our_headers_cannot_break_a_header() -> None:
    """F176"""
    assert printable("a:1") == b"a:1"
    assert printable("模\r\nx: y%") == b"%E6%A8%A1%0D%0Ax:%20y%25"
    assert len(printable("é" * 10_000)) == 256
