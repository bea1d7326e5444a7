"""What the product is measured against: the same files through Pillow and transformers.

Started by `cargo xtask bench cpu`; prints one JSON object. CPU seconds include child processes.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path


def cpu_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def images_of(folder):
    kinds = {".jpg", ".jpeg", ".png", ".webp"}
    return sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in kinds)


def preprocess(arguments):
    """Pillow and numpy, one core: decode, bicubic resize, centre crop, normalise."""
    import io

    import numpy as np
    from PIL import Image

    side = arguments.side
    mean = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
    std = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
    files = [path.read_bytes() for path in images_of(arguments.images)]
    spent = {"decode": 0.0, "resize": 0.0, "normalise": 0.0}
    best = dict.fromkeys([*spent, "total"], float("inf"))
    for _ in range(arguments.rounds):
        spent = dict.fromkeys(spent, 0.0)
        for data in files:
            a = time.process_time()
            image = Image.open(io.BytesIO(data)).convert("RGB")
            b = time.process_time()
            width, height = image.size
            short = min(width, height)
            size = (int(width * side / short), int(height * side / short))
            image = image.resize(size, Image.BICUBIC)
            left, top = (size[0] - side) // 2, (size[1] - side) // 2
            image = image.crop((left, top, left + side, top + side))
            c = time.process_time()
            pixels = np.asarray(image, np.float32) * np.float32(1 / 255)
            np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1))
            d = time.process_time()
            for stage, seconds in zip(spent, (b - a, c - b, d - c)):
                spent[stage] += seconds
        for stage, seconds in [*spent.items(), ("total", sum(spent.values()))]:
            best[stage] = min(best[stage], seconds)
    return {stage: len(files) / seconds for stage, seconds in best.items()}


def job(arguments):
    """Zero-shot classification with transformers, as its documentation does it."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

    torch.set_num_threads(arguments.threads)
    model = CLIPModel.from_pretrained(arguments.model, dtype=torch.float32).eval()
    processor = CLIPImageProcessor.from_pretrained(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    listing = json.loads(Path(arguments.classes).read_text())
    classes = {entry["name"]: entry["id"] for entry in listing["classes"]}
    files = images_of(arguments.images)

    class Images(Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            with Image.open(files[index]) as image:
                pixels = processor(images=image.convert("RGB"), return_tensors="pt")
            return pixels["pixel_values"][0], classes[files[index].parent.name]

    start, start_cpu = time.perf_counter(), cpu_seconds()
    with torch.inference_mode():
        heads = []
        for entry in listing["classes"]:
            texts = [template.replace("{}", entry["label"]) for template in listing["templates"]]
            ids = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")
            features = model.text_projection(model.text_model(**ids).pooler_output)
            features = features / features.norm(dim=-1, keepdim=True)
            head = features.mean(dim=0)
            heads.append(head / head.norm())
        heads = torch.stack(heads)
        right = 0
        loader = DataLoader(Images(), batch_size=arguments.batch, num_workers=arguments.workers)
        for pixels, labels in loader:
            features = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
            features = features / features.norm(dim=-1, keepdim=True)
            right += int(((features @ heads.T).argmax(dim=-1) == labels).sum())
    del loader  # its workers end, so that their CPU time is counted
    return {
        "images": len(files),
        "acc1": right / len(files),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": cpu_seconds() - start_cpu,
    }


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("preprocess")
    verb.set_defaults(run=preprocess)
    verb.add_argument("--images", required=True)
    verb.add_argument("--side", type=int, required=True)
    verb.add_argument("--rounds", type=int, default=3)
    verb = verbs.add_parser("job")
    verb.set_defaults(run=job)
    verb.add_argument("--images", required=True)
    verb.add_argument("--classes", required=True)
    verb.add_argument("--model", required=True)
    verb.add_argument("--threads", type=int, required=True)
    verb.add_argument("--workers", type=int, required=True)
    verb.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()
    json.dump(arguments.run(arguments), sys.stdout)


main()
