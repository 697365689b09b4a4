"""`vitrail serve`: the parent binds and supervises; with --fd this process is the worker."""

from __future__ import annotations

import dataclasses
import socket
import sys

import click

from vitrail.cli import emit


@click.command("serve")
@click.argument("weights", nargs=-1)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; the default is this machine only.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 takes a free one.")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--max-batch", default=32, show_default=True, help="Images in one forward pass.")
@click.option("--max-wait-ms", default=4.0, show_default=True, help="How long an image waits for company.")
@click.option("--queue", default=128, show_default=True, help="Images in the house at once; past it 503.")
@click.option("--max-bytes", default=16 * 2**20, show_default=True, help="Bytes of one request body.")
@click.option("--max-pixels", default=50_000_000, show_default=True, help="Pixels of one image.")
@click.option("--max-images", default=64, show_default=True, help="Images of one batch request.")
@click.option("--max-waiting-bytes", default=256 * 2**20, show_default=True, help="Bytes of all bodies held at once; past it 503.")
@click.option("--connections", default=1024, show_default=True, help="Connections open at once.")
@click.option("--header-timeout-s", default=8.0, show_default=True, help="To receive a request's header.")
@click.option("--body-timeout-s", default=9.0, show_default=True, help="To receive a request's body.")
@click.option("--request-timeout-s", default=10.0, show_default=True, help="To answer; past it 504.")
@click.option("--grace-s", default=30.0, show_default=True, help="For accepted requests after SIGTERM.")
@click.option("--fixed-batch", is_flag=True, help="Pad every batch to --max-batch: answers equal to the last bit.")
@click.option("--fast", is_flag=True, help="The fastest CPU runtime that keeps its bound (extra 'export').")
@click.option("--threads", default=None, type=int, help="CPU threads of the model (default: all cores).")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON when listening.")
@click.option("--fd", default=None, type=int, hidden=True)
def command(
    weights: tuple[str, ...],
    host: str,
    port: int,
    device: str | None,
    fd: int | None,
    fast: bool,
    threads: int | None,
    as_json: bool,
    **bounds: float,
) -> int:
    """Answer over HTTP: POST an image, get its classes; a page to try it is at /.

    WEIGHTS are files, directories or names (default: the model in the box). With several,
    each answers at /models/NAME/predict. SIGTERM finishes what was accepted; SIGHUP loads
    the weights again.
    """
    from vitrail.ship.serve.limits import Limits

    limits = Limits(**bounds)  # type: ignore[arg-type]
    if fd is not None:
        from vitrail.ship.predict import load_predictors
        from vitrail.ship.serve.worker import run_worker

        def load() -> dict[str, object]:
            return dict(load_predictors(weights, device=device, max_pixels=limits.max_pixels, threads=threads, fast=fast))

        return run_worker(load, socket.socket(fileno=fd), limits)

    from vitrail.ship.serve.supervise import bind, is_loopback, supervise
    from vitrail.weights.hub import default_model

    weights = weights or (default_model(),)
    sock = bind(host, port)
    address = f"http://{host}:{sock.getsockname()[1]}"

    def announce() -> None:
        emit({"address": address}, as_json, f"vitrail serve: listening on {address}")
        if not is_loopback(host):
            click.echo("vitrail serve: this address is open to the network; put a proxy with TLS in front.", err=True)
        sys.stdout.flush()

    arguments = [*weights]
    for field in dataclasses.fields(limits):
        value = getattr(limits, field.name)
        if field.name == "fixed_batch":
            arguments += ["--fixed-batch"] if value else []
        else:
            arguments += ["--" + field.name.replace("_", "-"), str(value)]
    arguments += (["--device", device] if device else []) + (["--threads", str(threads)] if threads else []) + ["--fast"] * fast
    return supervise(arguments, sock, limits.grace_s, announce)
