"""A model is a plain nn.Module: the paper's ViT in a training loop of your own, with the paper's preprocessing.

python examples/own_loop.py [STEPS] [OUT]
"""

import sys

import torch

import vitrail

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
out = sys.argv[2] if len(sys.argv) > 2 else "own_loop.safetensors"

source = vitrail.open_source("builtin:fashion", split="train")
model = vitrail.create_model("mu/4", classes=source.classes, image_size=28, pool="gap")
view = model.card.transform()  # decode, resize, range [-1, 1]: what this model wants
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
pick = torch.Generator().manual_seed(0)

for step in range(steps):
    index = torch.randint(len(source), (64,), generator=pick).tolist()
    images = torch.stack([view(source.read(i).data) for i in index])
    labels = torch.tensor([int(source.labels[i]) for i in index])
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == steps - 1:
        print(f"step {step:4d}  loss {loss.item():.3f}")

vitrail.save_model(model, out)  # weights and card in one file: eval, inspect, predict, serve take it
print(vitrail.evaluate(out, "builtin:fashion", split="test[:500]"))
