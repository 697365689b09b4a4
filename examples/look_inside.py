"""Where a model looked: attention rollout over a photograph, at its own shape, as a PNG.

python examples/look_inside.py WEIGHTS PHOTO [OUT.png]
"""

import sys
from pathlib import Path

from PIL import Image

import vitrail
from vitrail.data import decode
from vitrail.inspect.maps import attention_rollout
from vitrail.inspect.overlay import overlay

weights, photo, *rest = sys.argv[1:]
out = rest[0] if rest else "rollout.png"

model = vitrail.load_model(weights)
view = model.card.transform()
image = decode.pixels(Path(photo).read_bytes())  # upright RGB, whatever the file was
logits = model(view(image)[None])[0]
heat = attention_rollout(model, view(image)[None])[0]  # (rows, columns) of patches; fused attention stays on

Image.fromarray(overlay(image, heat, view.box(*image.shape[:2]))).save(out)
best = logits.softmax(0).topk(min(3, len(logits)))
names = model.card.classes or [str(k) for k in range(len(logits))]
print(", ".join(f"{names[k]} {100 * p:.1f} %" for p, k in zip(best.values.tolist(), best.indices.tolist())))
print(out)
