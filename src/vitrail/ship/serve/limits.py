"""Every bound of the server in one place: whatever is sent, memory and time stay inside these."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.errors import UsageError


@dataclass(frozen=True)
class Limits:
    max_bytes: int = 16 * 2**20  # of one request body
    max_pixels: int = 50_000_000  # of one image, read from its header before anything is decoded
    max_images: int = 64  # of one batch request
    max_waiting_bytes: int = 256 * 2**20  # of all request bodies that are being received or answered; past it 503
    queue: int = 128  # images decoded or waiting at once; past it the answer is 503
    max_batch: int = 32  # images in one forward pass
    max_wait_ms: float = 4.0  # how long the first image of a batch waits for company
    connections: int = 1024  # open at once; past it a connection is answered 503 and closed
    header_timeout_s: float = 8.0  # to receive one request's header, and for an idle connection
    body_timeout_s: float = 9.0  # to receive one request's body
    request_timeout_s: float = 10.0  # from the whole body received to the answer; past it 504
    grace_s: float = 30.0  # for accepted requests after SIGTERM
    fixed_batch: bool = False  # pad every forward pass to max_batch: answers equal to the last bit whoever shares it

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("fixed_batch", "max_wait_ms") and value <= 0:
                raise UsageError(f"serve: {field.name} must be above 0, not {value}.")
        if self.max_batch > self.queue:
            raise UsageError(
                f"serve: max_batch ({self.max_batch}) is above queue ({self.queue}): a batch could never fill.",
                hint="raise --queue or lower --max-batch",
            )
