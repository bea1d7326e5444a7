"""Peak memory of transformers' vision tower on a GPU: what the product's peak is compared with.

ViT-L/14 at 336 pixels with random weights in bf16, one forward pass of a batch of 256 images, with
SDPA and with eager attention. Needs torch 2.11 and transformers 5.17; prints one JSON object. Peaks
are torch's own, in bytes; `weights` is what was allocated before the pass.

    python3 transformers_memory.py [--batch 256] [--passes 3] [--device cuda:0]
"""

import argparse
import gc
import json
import time


def configuration():
    from transformers import CLIPVisionConfig

    return CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
        projection_dim=768,
        hidden_act="quick_gelu",
    )


def measure(attention, arguments):
    """One implementation of attention, from an empty cache."""
    import torch
    from transformers import CLIPVisionModelWithProjection

    device = torch.device(arguments.device)
    gc.collect()
    torch.cuda.empty_cache()
    config = configuration()
    config._attn_implementation = attention
    model = CLIPVisionModelWithProjection(config).to(device, torch.bfloat16).eval()
    found = model.config._attn_implementation
    if found != attention:
        raise SystemExit(f"asked for {attention} attention, transformers chose {found}")
    size = config.image_size
    weights = torch.cuda.memory_allocated(device)
    pixels = torch.randn(arguments.batch, 3, size, size, device=device, dtype=torch.bfloat16)
    with torch.inference_mode():
        model(pixel_values=pixels[:8])
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        started = time.perf_counter()
        for _ in range(arguments.passes):
            embeddings = model(pixel_values=pixels).image_embeds
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
    peaks = {
        "weights": weights,
        "input": pixels.numel() * pixels.element_size(),
        "allocated_peak": torch.cuda.max_memory_allocated(device),
        "reserved_peak": torch.cuda.max_memory_reserved(device),
        "rows_per_second": arguments.batch * arguments.passes / seconds,
        "finite": bool(torch.isfinite(embeddings).all()),
    }
    del model, pixels, embeddings
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    import torch
    import transformers

    torch.manual_seed(3)
    report = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name(arguments.device),
        "model": "ViT-L/14@336, random weights, bf16",
        "batch": arguments.batch,
    }
    for attention in ("sdpa", "eager"):
        report[attention] = measure(attention, arguments)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
