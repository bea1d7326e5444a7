"""The whole job that the product is measured against: zero-shot classification with transformers.

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
    parser.add_argument("--images", required=True)
    parser.add_argument("--classes", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    json.dump(job(parser.parse_args()), sys.stdout)


main()
