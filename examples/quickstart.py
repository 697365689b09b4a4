"""From nothing to a model you know: train on the built-in pictures, measure, look inside. No download, no GPU.

python examples/quickstart.py [MINUTES of training, default 2] [FOLDER, default runs/quickstart]
"""

import sys
from pathlib import Path

import vitrail
from vitrail.config import load_recipe
from vitrail.train.report import write_report

minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/quickstart")

print(f"Training a small ViT on 10,000 pictures of clothes for {minutes:g} minutes, from scratch.", flush=True)
run = vitrail.train(load_recipe("fashion-quick", [f"train.max_minutes={minutes}"]), folder)
model = vitrail.load_model(str(folder / "last.safetensors"))

print("\nMeasuring it on 2,000 pictures it has never seen.", flush=True)
measured = vitrail.evaluate(model, "builtin:fashion", split="test", keep_answers=True)
print(measured)
report = write_report(folder, model, measured, ["the recipe fashion-quick, its length cut to the time given"])

print("\nLooking inside: filters, positions, attention.", flush=True)
inside = vitrail.inspect(model, "builtin:fashion", out=folder / "inside")

print(f"""
{measured.top1.percent(1)} of {measured.images:,} pictures are named correctly (95 % interval),
after {run.steps:,} steps, {run.images:,} pictures.

what it does     {report}
what is inside   {folder / "inside" / "report.html"}
use it           vitrail predict {folder / "last.safetensors"} your.png
                 vitrail serve {folder / "last.safetensors"}
your pictures    vitrail finetune --model hf://google/vit-base-patch16-224-in21k --data photos/""")
