"""Makes photographs of 500 x 375 pixels for the preprocessing benchmark.

    python make_photos.py FOLDER [COUNT]

Seeded crops, flips and changes of brightness of the colour photographs that scikit-image and
scikit-learn bring along, as JPEG with 4:2:0 chroma at quality 92 to 97: about the size and the
detail of ImageNet's validation set. The same versions of the packages give the same files.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from skimage import data
from sklearn.datasets import load_sample_images

WIDTH, HEIGHT = 500, 375
SEED = 20261130


def sources():
    """Photographs that are at least as large as a crop, in a fixed order."""
    named = [getattr(data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")]
    pictures = [Image.fromarray(array).convert("RGB") for array in [*named, *load_sample_images().images]]
    # A picture that is too small is enlarged, never more than by half.
    for picture in pictures:
        factor = max(WIDTH / picture.width, HEIGHT / picture.height, 1)
        yield picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.BICUBIC)


def variant(picture, rng):
    """One crop of 75 % to 100 % of the largest possible one, perhaps flipped, a little brighter or darker."""
    largest = min(picture.width / WIDTH, picture.height / HEIGHT)
    scale = largest * rng.uniform(0.75, 1.0)
    width, height = round(WIDTH * scale), round(HEIGHT * scale)
    left = rng.integers(0, picture.width - width + 1)
    top = rng.integers(0, picture.height - height + 1)
    crop = picture.crop((left, top, left + width, top + height)).resize((WIDTH, HEIGHT), Image.BICUBIC)
    if rng.random() < 0.5:
        crop = crop.transpose(Image.FLIP_LEFT_RIGHT)
    crop = ImageEnhance.Brightness(crop).enhance(rng.uniform(0.85, 1.15))
    # Sensor noise: what keeps a photograph from compressing like a drawing.
    noise = rng.normal(0, 3, (HEIGHT, WIDTH, 3))
    return Image.fromarray(np.clip(np.asarray(crop) + noise, 0, 255).astype(np.uint8))


def main():
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 96
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    pictures = list(sources())
    for index in range(count):
        photo = variant(pictures[index % len(pictures)], rng)
        photo.save(folder / f"{index:04}.jpg", quality=int(rng.integers(92, 98)), subsampling="4:2:0")


if __name__ == "__main__":
    main()
