"""One model, many homes: take weights of any origin to Google's npz, timm, transformers and back, and check the logits.

python examples/convert_weights.py WEIGHTS FOLDER
"""

import sys
from pathlib import Path

import torch

import vitrail

weights, folder = sys.argv[1], Path(sys.argv[2])
model = vitrail.load_model(weights)
images = torch.randn(2, model.config.channels, *model.config.image_size, generator=torch.Generator().manual_seed(0))

for home in ("npz", "timm", "hf"):
    target = folder / (f"{home}.npz" if home == "npz" else home)
    print(vitrail.convert(weights, target, to=home))  # what was renamed, reshaped, dropped
    again = vitrail.load_model(str(target))
    with torch.no_grad():
        off = (again(images) - model(images)).abs().max().item()
    print(f"{target}: logits differ by {off:.1e} at most\n")
