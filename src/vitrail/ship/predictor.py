"""`Predictor`: one model, ready to answer. `vitrail predict`, `vitrail serve` and Ray use this one class.

    bytes --pixels--> uint8 (H, W, C) --forward--> logits --answer--> classes with probabilities

Decoding, the view and the normalisation are the functions evaluation uses
(`data.transform.Preprocess`), and `forward` does what `evaluate.score` does to a batch, so
that what is served cannot differ from what was measured.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.decode import MAX_PIXELS, decode
from vitrail.errors import NumericsError, UsageError
from vitrail.model.patch import PatchEmbedding
from vitrail.runtime.device import PRECISIONS, Precision, pick_device
from vitrail.runtime.faults import fault
from vitrail.runtime.graph import Graphed
from vitrail.weights.card import Card, card_of

if TYPE_CHECKING:
    from vitrail.ship.fast import Runtime

__all__ = ["Predictor"]

LOOKING = threading.Lock()  # explanations run one at a time: they watch the model with hooks


class Predictor:
    """A model with its card.

    independent: probabilities by a sigmoid for each class (multi-label models) instead of a softmax.
    runtime: another way to compute the logits (`ship.fast`), already held to its bound.
    """

    def __init__(
        self,
        model: nn.Module,
        card: Card | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
        precision: str = "fp32",
        max_pixels: float = MAX_PIXELS,
        independent: bool = False,
        runtime: Runtime | None = None,
    ) -> None:
        self.card: Card = card if card is not None else card_of(model)
        self.name = name or self.card.name or "model"
        self.device = pick_device(device)
        self.precision = Precision(precision)
        self.precision.prepare()
        self.model = model.to(self.device).eval()
        self.preprocess = self.card.transform()
        self.max_pixels = max_pixels
        self.independent = independent
        self.runtime = runtime
        self._replayed: tuple[nn.Module, Graphed] | None = None
        outputs = int(model.config.classes)  # type: ignore[union-attr, arg-type]
        self.classes = tuple(self.card.classes) or tuple(map(str, range(outputs)))

    # ---- from bytes to an answer ----

    def pixels(self, data: bytes | np.ndarray, where: str = "") -> np.ndarray:
        """One image, decoded within the limits, as the evaluation view: (H, W, C), not yet normalised."""
        if isinstance(data, bytes):
            data = decode(data, max_pixels=self.max_pixels, where=where)
        return self.preprocess.pixels(data, where)

    def images(self, batch: np.ndarray) -> Tensor:
        """(N, H, W, C) of `pixels` -> what the model takes, on its device."""
        nchw = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)))
        return self.preprocess.normalise(nchw.to(self.device, non_blocking=True)).to(self.precision.weights)

    def forward(self, batch: np.ndarray) -> np.ndarray:
        """(N, H, W, C) -> logits (N, classes) in float32."""
        fault("predict.forward")
        with torch.inference_mode():
            images = self.images(batch)
            if self.runtime is not None:
                return self.runtime(images)
            return self.logits(images).cpu().numpy()

    def logits(self, images: Tensor) -> Tensor:
        """What the model takes -> logits in float32. On a GPU, batch sizes that come again are replayed (`runtime.graph`)."""
        if self.device.type != "cuda":
            return self._logits(self.model, images)
        if self._replayed is None or self._replayed[0] is not self.model:
            half = PRECISIONS[self.precision.name]
            model = self.model if half is None else rounded_once(self.model, half)
            self._replayed = self.model, Graphed(functools.partial(self._logits, model))
        return self._replayed[1](images)

    def _logits(self, model: nn.Module, images: Tensor) -> Tensor:
        with self.precision.autocast(self.device):
            return model(images).float()

    def features(self, batch: np.ndarray) -> np.ndarray:
        """(N, H, W, C) -> what the head reads, (N, D) in float32."""
        with torch.inference_mode(), self.precision.autocast(self.device):
            return self.model.features(self.images(batch)).float().cpu().numpy()  # type: ignore[operator]

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(..., classes) in float64; refuses logits that are no numbers."""
        if not np.isfinite(logits).all():
            raise NumericsError(
                f"{self.name}: the logits are not numbers (NaN or Inf).",
                hint="try --precision fp32; if it stays, the weights are damaged or diverged in training",
            )
        scores = logits.astype(np.float64)
        if self.independent:
            return 1 / (1 + np.exp(-scores))
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    def answer(self, logits: np.ndarray, top: int = 5) -> list[dict[str, Any]]:
        """The `top` likeliest classes of one image, best first; equal ones in the order of the classes."""
        chances = self.probabilities(logits)
        best = np.argsort(-chances, kind="stable")[:top]
        return [{"class": self.classes[i], "index": int(i), "probability": float(chances[i])} for i in best]

    def __call__(self, images: Sequence[bytes | np.ndarray] | bytes | np.ndarray, top: int = 5) -> list[list[dict[str, Any]]]:
        """Images in memory -> their answers: for one batch at a time, in your own program."""
        several = [images] if isinstance(images, (bytes, np.ndarray)) else list(images)
        logits = self.forward(np.stack([self.pixels(image) for image in several]))
        return [self.answer(row, top) for row in logits]

    # ---- where it looked ----

    def overlay(self, data: bytes) -> bytes:
        """The image as a PNG, its attention rollout laid over the part that the model saw."""
        from PIL import Image

        from vitrail.inspect.maps import attention_rollout
        from vitrail.inspect.overlay import overlay

        image, batch, box = self._look(data)
        with LOOKING:
            maps = attention_rollout(self.watched, batch)
        picture = overlay(image, maps[0].numpy(), box)
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG")
        return out.getvalue()

    def attention(self, data: bytes) -> dict[str, Any]:
        """Rollout, and the class token's row of every layer and head, as grids of patches; and where they lie.

        box: left, top, width, height of what the model saw, as parts of the upright image.
        """
        from vitrail.inspect.maps import attention_rollout, class_attention

        image, batch, box = self._look(data)
        height, width = image.shape[:2]
        with LOOKING:
            rollout = attention_rollout(self.watched, batch)
            layers = class_attention(self.watched, batch)[0]  # (layers, heads, rows, columns)
        top, left, bottom, right = box
        return {
            "model": self.name,
            "box": [left / width, top / height, (right - left) / width, (bottom - top) / height],
            "grid": list(rollout.shape[-2:]),
            "rollout": _rounded(rollout[0]),
            "layers": _rounded(layers),
            "note": self._look_note(),
        }

    @functools.cached_property
    def watched(self) -> nn.Module:
        """The model once more, with the same parameters: hooks on it see no batch that another thread answers meanwhile."""
        shared = [*self.model.parameters(), *self.model.buffers()]
        return copy.deepcopy(self.model, {id(tensor): tensor for tensor in shared})

    def _look(self, data: bytes) -> tuple[np.ndarray, Tensor, Any]:
        if not hasattr(self.model, "blocks"):
            raise UsageError(f"{self.name} has no attention to show: it is a ResNet.", hint="a ViT or a hybrid has")
        image = decode(data, max_pixels=self.max_pixels)
        batch = self.images(self.preprocess.pixels(image)[None])
        return image, batch, self.preprocess.box(*image.shape[:2])

    def _look_note(self) -> str:
        seen = "class token" if getattr(self.model.config, "class_token", False) else "patches"
        return f"What the {seen} attended to. Attention is where information came from, not proof of a reason."

    @functools.cached_property
    def identity(self) -> str:
        """A hash of weights and view: equal where the answers are equal."""
        digest = hashlib.sha256(repr((self.preprocess, self.classes, self.independent)).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """What GET /models says."""
        return {
            "name": self.name,
            "classes": len(self.classes),
            "image_size": list(self.model.config.image_size),  # type: ignore[union-attr, arg-type]
            "origin": self.card.origin,
            "runtime": self.runtime.name if self.runtime else f"torch {self.precision.name}",
            "attention": hasattr(self.model, "blocks"),
        }


def _rounded(maps: Tensor) -> Any:
    """Nested lists with five digits: enough for a picture, a third of the bytes."""
    return np.round(maps.float().cpu().numpy().astype(np.float64), 5).tolist()


def rounded_once(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A twin whose dense layers hold their weights as autocast would round them at every call: the same bits, sooner."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, (nn.Linear, PatchEmbedding)):
            module.to(dtype)
    return twin
