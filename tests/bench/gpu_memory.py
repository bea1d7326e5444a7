"""Tables from what gpu_memory.sh measured: profiles (JSON) and readings of nvidia-smi (text).

    python3 gpu_memory.py FOLDER

A profile is named SHAPE.PRECISION.QUOTA.json, the readings beside it .smi: MiB in use, the first
line before the process began. A profile that was refused is an empty file with its words in .err.
"""

import json
import sys
from pathlib import Path

MIB = 1 << 20


def mib(value):
    return "" if value is None else f"{value / MIB:.0f}"


def peak(profile, name):
    values = [phase[name] for phase in profile["phases"].values() if phase[name] is not None]
    return max(values, default=None)


def used(path):
    """Most that was in use over the baseline, in bytes."""
    if not path.is_file():
        return None
    lines = path.read_text().splitlines()
    numbers = [int(line) for line in lines if line.strip().isdigit()]
    return (max(numbers) - numbers[0]) * MIB if numbers else None


def row(path):
    shape, precision, quota = path.name.removesuffix(".json").split(".")
    text = path.read_text()
    if not text.strip():
        words = path.with_suffix(".err").read_text().strip().splitlines()
        return (shape, precision, quota), None, words[-1] if words else "no words"
    profile = json.loads(text)
    points = [point for point in profile["curve"] if point["measured_bytes"]]
    errors = [100 * abs(p["predicted_bytes"] / p["measured_bytes"] - 1) for p in points]
    best = max(points, key=lambda point: point["rows_per_second"] or 0, default=None)
    figures = {
        "error": max(errors, default=float("nan")),
        "mean": sum(errors) / len(errors) if errors else float("nan"),
        "allocated": peak(profile, "allocated_peak_bytes"),
        "reserved": peak(profile, "reserved_peak_bytes"),
        "device": peak(profile, "device_peak_bytes"),
        "smi": used(path.with_suffix(".smi")),
        "quota": profile["quota_bytes"],
        "rate": best["rows_per_second"] if best else 0.0,
        "rows": best["rows"] if best else 0,
        "chosen": profile["rows"],
    }
    return (shape, precision, quota), figures, None


def main():
    rows = [row(path) for path in sorted(Path(sys.argv[1]).glob("*.*.*.json"))]
    unlimited = {key[:2]: found["rate"] for key, found, _ in rows if found and key[2] == "none"}
    print(
        "| tower | precision | quota, GiB | error, largest | mean | allocated, MiB | reserved | "
        "device less baseline | nvidia-smi less baseline | within | best rate, rows/s | at rows | "
        "chosen | of unlimited |"
    )
    print("|" + " --- |" * 14)
    for key, found, words in rows:
        shape, precision, quota = key
        if found is None:
            print(f"| {shape} | {precision} | {quota} | refused: {words} |" + " |" * 10)
            continue
        seen = [found[name] for name in ("reserved", "device", "smi") if found[name] is not None]
        within = "yes" if all(value <= found["quota"] for value in seen) else "NO"
        whole = unlimited.get(key[:2])
        share = f"{100 * found['rate'] / whole:.1f} %" if whole else ""
        print(
            f"| {shape} | {precision} | {quota} | {found['error']:.2f} % | {found['mean']:.2f} % | "
            f"{mib(found['allocated'])} | {mib(found['reserved'])} | {mib(found['device'])} | "
            f"{mib(found['smi'])} | {within} | {found['rate']:.1f} | {found['rows']} | "
            f"{found['chosen']} | {share} |"
        )


if __name__ == "__main__":
    main()
