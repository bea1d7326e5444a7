"""Pictures per second of one core in Pillow and numpy, stage by stage, as one JSON object.

    python pillow_rate.py FOLDER SIZE [SECONDS]

The counterpart of `crates/data/examples/preprocess_rate.rs`: same files in memory, same stages, time
of this process on the processor, best of three rounds.
"""

import io
import json
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


def decode(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def crop(image, size):
    short = min(image.size)
    width, height = (int(size * side / short) for side in image.size)
    image = image.resize((width, height), Image.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def normalise(image):
    numbers = np.asarray(image).astype(np.float32)
    numbers *= np.float32(1 / 255)
    numbers -= MEAN
    numbers /= STD
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))


def rate(items, one, seconds):
    best = 0.0
    for _ in range(3):
        start, done = time.process_time(), 0
        while (spent := time.process_time() - start) < seconds:
            for item in items:
                one(item)
            done += len(items)
        best = max(best, done / spent)
    return best


def main():
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    seconds = float(sys.argv[3]) / 3 if len(sys.argv) > 3 else 1.0
    files = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    images = [decode(data) for data in files]
    crops = [crop(image, size) for image in images]
    print(json.dumps({
        "pictures": len(files),
        "megabytes": sum(map(len, files)) / 1e6,
        "size": size,
        "per_cpu_second": {
            "decode": rate(files, decode, seconds),
            "crop": rate(images, lambda image: crop(image, size), seconds),
            "normalise": rate(crops, normalise, seconds),
            "whole": rate(files, lambda data: normalise(crop(decode(data), size)), seconds),
        },
    }))


if __name__ == "__main__":
    main()
