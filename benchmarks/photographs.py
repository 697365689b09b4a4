"""Pictures with the statistics of photographs, made on the spot: noise with a natural spectrum, and shapes with edges.

At 500x375 and quality 90 a file has about 49 kB, like ImageNet's at that size.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageDraw


def photograph(seed: int, width: int = 500, height: int = 375) -> np.ndarray:
    """(height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    base = spectrum(rng, height, width, 1.55)
    colour = [base + 0.35 * spectrum(rng, height, width, 1.7) for _ in range(3)]
    pixels = 128 + 52 * np.stack(colour, -1)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image, "RGBA")
    for _ in range(14):
        x, y, size = rng.integers(0, width), rng.integers(0, height), int(rng.integers(20, 120))
        shade = (*map(int, rng.integers(0, 256, 3)), int(rng.integers(60, 170)))
        kind = rng.integers(3)
        if kind == 0:
            draw.ellipse((x, y, x + size, y + size * 0.7), fill=shade)
        elif kind == 1:
            draw.polygon([(x, y), (x + size, y + size // 3), (x + size // 4, y + size)], fill=shade)
        else:
            draw.line((x, y, x + size, y + size * 0.3), fill=shade, width=3)
    return np.asarray(image)


def spectrum(rng: np.random.Generator, height: int, width: int, falloff: float) -> np.ndarray:
    """Noise whose amplitude falls as frequency to the power -falloff, standard deviation 1."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    radius = np.hypot(fy, fx)
    radius[0, 0] = 1
    phase = np.fft.rfft2(rng.standard_normal((height, width)))
    noise = np.fft.irfft2(phase / radius**falloff, (height, width))
    return (noise - noise.mean()) / noise.std()


def jpeg(seed: int, width: int = 500, height: int = 375, quality: int = 90) -> bytes:
    file = io.BytesIO()
    Image.fromarray(photograph(seed, width, height)).save(file, "JPEG", quality=quality)
    return file.getvalue()
