"""S15: what a client sends cannot write lines into the log."""

from serving_harness import png, request


def test_the_log_has_one_line_an_event_and_nothing_of_the_client(start):
    server = start(env={"VITRAIL_FAULT": "predict.forward:1=raise:EIO"})
    evil = "evil\x1b[31m%0aFAKE-LINE"
    server.raw(request(f"/{evil.replace(chr(27), '%1b')}", png(), "image/png"))
    server.raw(request("/predict", png(), "image/png", extra=("X-Evil: FAKE-LINE\x1b[31m", "User-Agent: FAKE-LINE")))
    server.raw(request("/models/" + "FAKE-LINE" * 1000 + "/predict", png()))
    server.raw(request("/explain", b"FAKE-LINE\n\x1b[31m" * 100))
    text = server.log.read_text()
    assert "FAKE-LINE" not in text
    assert "\x1b" not in text
    assert "internal error" in text, "the failed batch is in the log"
    for line in text.splitlines():
        assert line[:2] == "20" and len(line) < 2200, line


def test_the_formatter_escapes_and_bounds_whatever_it_is_given():
    import logging

    from vitrail.ship.serve.worker import OneLine

    record = logging.LogRecord("a", logging.INFO, "f", 1, "name %s", ("x\n\x1b[31m\u2028" + "y" * 1_000_000,), None)
    line = OneLine("%(message)s").format(record)
    assert line.startswith(r"name x\n\x1b[31m\u2028y") and len(line) <= 2001
