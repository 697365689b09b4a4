"""Tests against timm, transformers and torchvision themselves (extra `parity`): `make parity`."""

from vitrail.study.bench_peers import with_torchvision

with_torchvision()
