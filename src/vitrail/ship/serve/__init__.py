"""The HTTP server: `limits`, `batching`, `protocol` (slow clients), `app` (routes), `metrics`, `supervise`."""
