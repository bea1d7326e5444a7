"""Made the fixtures and golden files beside it, once, with Pillow 13.0 and transformers 5.17.

Nothing runs this: it says how the expected values came about, and how to make them again.
    python make_golden.py ../../../../tests/data
Needs pillow, numpy, transformers, tokenizers, blake3.
"""

import io
import json
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
from blake3 import blake3
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
DATA = Path(sys.argv[1])
FIXTURES = HERE.parent / "fixtures"
FIXTURES.mkdir(exist_ok=True)
RNG = np.random.default_rng(20261130)


def digest(array):
    return blake3(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]


def picture(width, height, channels=3):
    """Smooth waves with a little noise: compresses like a photograph."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) + np.cos(y / (4 + c)) for c in range(channels)]
    values = np.stack(waves, axis=-1) * 55 + 128 + RNG.normal(0, 6, (height, width, channels))
    return np.clip(values, 0, 255).astype(np.uint8).squeeze()


# --- fixtures -----------------------------------------------------------------------------------

def save(name, data):
    (FIXTURES / name).write_bytes(data)


def encode(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, data, crc=None):
    crc = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png(width, height, depth, colour, raw, extra=b"", crc=None, interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
            + chunk(b"IDAT", zlib.compress(raw, 9), crc) + chunk(b"IEND", b""))


SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def rows(values, depth):
    """Filter byte 0 and packed samples for each row of values (height, width, samples)."""
    out = b""
    for row in values:
        flat = row.reshape(-1).astype(np.uint32)
        if depth == 16:
            packed = flat.astype(">u2").tobytes()
        else:
            bits = ((flat[:, None] >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8)
            packed = np.packbits(bits.reshape(-1)).tobytes()
        out += b"\0" + packed
    return out


def make_png_fixtures():
    for colour, samples in SAMPLES.items():
        for depth in {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}[colour]:
            width, height = 13, 9
            values = RNG.integers(0, 2**depth, (height, width, samples))
            if colour == 0 and depth == 16:
                values[0, :6, 0] = [0, 1, 254, 255, 256, 257]
            extra = b""
            if colour == 3:
                # Half of the entries only: the rest is missing.
                entries = max(2, 2**depth // 2)
                extra = chunk(b"PLTE", RNG.integers(0, 256, entries * 3, dtype=np.uint8).tobytes())
                extra += chunk(b"tRNS", bytes([0, 128]))
            save(f"c{colour}-d{depth}.png", png(width, height, depth, colour, rows(values, depth), extra))
            raw = b""
            for x, y, dx, dy in PASSES:
                part = values[y::dy, x::dx]
                if part.size:
                    raw += rows(part, depth)
            save(f"c{colour}-d{depth}-adam7.png", png(width, height, depth, colour, raw, extra, interlace=1))
    values = RNG.integers(0, 256, (9, 13, 3))
    sound = png(13, 9, 8, 2, rows(values, 8))
    save("no-end-chunk.png", sound[:-12])
    save("text-after-end.png", sound + b"tail")
    transparent = chunk(b"tRNS", struct.pack(">HHH", *values[0, 0]))
    save("rgb-transparent.png", png(13, 9, 8, 2, rows(values, 8), transparent))
    noise = encode(Image.fromarray(RNG.integers(0, 256, (24, 24, 3), dtype=np.uint8)), "PNG")
    save("BAD-cut.png", noise[:-200])
    save("BAD-filter.png", png(2, 1, 8, 2, b"\7" + bytes(6)))
    save("BAD-palette-checksum.png", png(2, 1, 8, 3, bytes(3), chunk(b"PLTE", bytes(6), crc=7)))
    save("BAD-depth.png", png(2, 1, 4, 2, bytes(7)))


def entropy(data):
    """Where the coded samples of the first scan begin."""
    at = data.index(b"\xff\xda")
    return at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]


def make_jpeg_fixtures():
    colour = Image.fromarray(picture(37, 29))
    for sampling, name in ((0, "444"), (1, "422"), (2, "420")):
        save(f"odd-{name}.jpg", encode(colour, "JPEG", quality=88, subsampling=sampling))
    save("rgb.jpg", encode(colour, "JPEG", quality=90, keep_rgb=True))
    save("progressive-420.jpg", encode(colour, "JPEG", quality=80, progressive=True))
    restarts = encode(colour, "JPEG", quality=85, restart_marker_blocks=2)
    save("restarts.jpg", restarts)
    save("gray-odd.jpg", encode(Image.fromarray(picture(19, 23, 1)), "JPEG", quality=70))
    save("one.jpg", encode(Image.fromarray(picture(1, 1).reshape(1, 1, 3)), "JPEG"))
    cmyk = Image.fromarray(picture(21, 17, 4), "CMYK")
    data = encode(cmyk, "JPEG", quality=90)
    save("cmyk-odd.jpg", data)
    adobe = data.index(b"Adobe") + 11
    save("ycck.jpg", data[:adobe] + b"\2" + data[adobe + 1:])
    plain = encode(colour, "JPEG", quality=88)
    start = entropy(plain)
    # What libjpeg warns about, and decodes.
    save("warn-extraneous.jpg", plain[:20] + b"\1\2\3\4\5" + plain[20:])
    save("warn-before-end.jpg", plain[:-2] + b"\1\2\3" + plain[-2:])
    save("warn-jfif-revision.jpg", plain[:11] + b"\7" + plain[12:])
    rgb = encode(colour, "JPEG", quality=90, keep_rgb=True)
    save("warn-adobe-transform.jpg", rgb[:rgb.index(b"Adobe") + 11] + b"\7" + rgb[rgb.index(b"Adobe") + 12:])
    damaged = bytearray(plain)
    for at in (start + 60, start + 61, start + 130):
        damaged[at] ^= 0x55
        if damaged[at] == 0xFF:
            damaged[at] = 0x7F
    save("warn-damaged.jpg", bytes(damaged))
    save("warn-marker-inside.jpg", plain[:start + 90] + b"\xff\xd9" + plain[start + 92:])
    at = restarts.index(b"\xff\xd1")
    save("warn-restart.jpg", restarts[:at] + b"\xff\xd5" + restarts[at + 2:])
    save("trailing.jpg", plain + b"anything at all" * 5)
    save("fill-bytes.jpg", plain[:2] + b"\xff\xff" + plain[2:])
    save("BAD-no-end.jpg", plain[:-2])
    save("BAD-half-marker.jpg", plain[:-1])
    save("BAD-cut.jpg", plain[:start + 100])
    save("BAD-cut-damaged.jpg", bytes(damaged)[:-30])
    save("BAD-cut-progressive.jpg", encode(colour, "JPEG", quality=80, progressive=True)[:-80])
    save("BAD-cut-header.jpg", plain[:200])
    # First a warning (bytes before a marker, between two scans), then an error (a table's number).
    progressive = encode(colour, "JPEG", quality=80, progressive=True)
    table = progressive.index(b"\xff\xc4", entropy(progressive))
    save("BAD-warning-then-error.jpg",
         progressive[:table] + b"\1\2\3" + progressive[table:table + 4] + b"\x77" + progressive[table + 5:])


def make_webp_fixtures():
    colour = Image.fromarray(picture(37, 29))
    alpha = Image.fromarray(picture(37, 29, 4), "RGBA")
    for quality in (20, 80):
        save(f"lossy-{quality}.webp", encode(colour, "WEBP", quality=quality))
    save("lossy-alpha.webp", encode(alpha, "WEBP", quality=75))
    save("lossless-odd.webp", encode(colour, "WEBP", lossless=True))
    save("lossless-alpha.webp", encode(alpha, "WEBP", lossless=True, exact=True))
    frames = [Image.fromarray(picture(16, 12)) for _ in range(2)]
    save("animated.webp", encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True))
    save("BAD-cut.webp", encode(colour, "WEBP", quality=80)[:-40])


# --- golden values ------------------------------------------------------------------------------

def decoded(path):
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        return image.convert("RGB")


def decode_golden():
    lines = {}
    for folder in (DATA / "edge", FIXTURES):
        for path in sorted(folder.iterdir()):
            try:
                image = decoded(path)
                lines[path.name] = f"{image.width} {image.height} {digest(np.array(image))}"
            except Exception as error:
                lines[path.name] = f"refused: {type(error).__name__}"
    return lines


def cropped(image, edge, crop):
    processor = CLIPImageProcessorPil(size={"shortest_edge": edge}, crop_size=dict(zip(("height", "width"), crop)),
                                      do_rescale=False, do_normalize=False)
    return processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0).astype(np.uint8)


def crop_golden():
    lines = {}
    fluent = sorted((DATA / "fluent/imagefolder").glob("*/*.jpg"))[::40]
    edge = [path for path in sorted((DATA / "edge").iterdir()) if not path.name.startswith("BAD")]
    for path in fluent + edge:
        image = decoded(path)
        for side in (112, 224):
            lines[f"{path.relative_to(DATA)} {side} {side}x{side}"] = digest(cropped(image, side, (side, side)))
    return lines


# Shapes of synthetic pictures: byte i of the picture is (i * 2654435761 >> 13) mod 256.
SHAPES = [(1, 1), (7, 3), (3, 7), (2, 300), (300, 2), (500, 375), (375, 500), (640, 224), (225, 601), (224, 224),
          (112, 112), (113, 112), (1023, 767), (97, 4000), (223, 225), (333, 224), (31, 29), (1, 1000)]
# Shortest edge, crop height, crop width: even, odd, larger and smaller than the edge.
RECIPES = [(112, 112, 112), (224, 224, 224), (64, 33, 48), (33, 40, 64), (225, 224, 223)]


def synthetic(width, height):
    index = np.arange(width * height * 3, dtype=np.uint64)
    values = ((index * 2654435761 % 2**32) >> 13) & 255
    return Image.fromarray(values.astype(np.uint8).reshape(height, width, 3))


def synthetic_golden():
    lines = {}
    for width, height in SHAPES:
        for edge, crop_height, crop_width in RECIPES:
            crop = cropped(synthetic(width, height), edge, (crop_height, crop_width))
            lines[f"{width}x{height} {edge} {crop_width}x{crop_height}"] = digest(crop)
    return lines


UGLY = [
    "", " ", "   \t\n ", "a", "A", "HELLO World", "don't can't we've I'm they'll he'd you're it's", "DON'T",
    "a  double   space", "tabs\tand\nnew\r\nlines", " leading and trailing ", "1234567890", "3.14159 1,000,000 50%",
    "2nd 10th abc123def", "hello,world!How-are_you?", "!!! ??? ... ---", "C++ C# F#", "a/b\\c|d", "<b>bold</b> &amp; &lt;",
    "&quot;quoted&quot; &#39;", "http://example.com/a?b=c&d=e", "me@example.com", "#hashtag @mention", "$5 €10 £3 ¥4",
    "café naïve résumé", "cafe\u0301 nai\u0308ve", "ÅNGSTRÖM", "straße STRASSE", "İstanbul ıi", "ΑΒΓ αβγς", "Привет мир",
    "你好世界", "こんにちは", "한국어", "مرحبا", "שלום", "नमस्ते", "ไทย", "😀", "😀😃😄 faces", "👩‍👩‍👧‍👦 family", "👍🏽 thumbs",
    "🇩🇪 flag", "1️⃣ keycap", "\u200bzero\u200bwidth", "non\u00a0breaking\u2003space", "line\u2028sep\u2029par", "nul\x00byte\x01\x1f\x7f",
    "\x85next\x1cline\x1d", "ﬁ ligature ½ ² ① Ⅷ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙", "\ufeffbom", "\ufffd", "a\u0300\u0301\u0302", "ǅ ǆ Ǆ",
    "<|startoftext|> hi <|endoftext|>", "<|endoftext|>", "<|ENDOFTEXT|>", "<|startoftext|", "a photo of a <|endoftext|>cat.",
    "'s 't 're 've 'm 'll 'd", "'S 'T", "x" * 200, "word " * 100, "supercalifragilisticexpialidocious", "¡¿", "…—–''\"\"",
    "٣٤٥ ४५", "e\u0301" * 20, "a photo of a " + "very " * 20 + "long cat", "日本語123abc", "\U0001fae8 shaking", "ʼn ŉ",
    "Ǳ \u1e9e \u0130", "_under_score_", "a'b'c", "rock'n'roll", "\u2019s curly don\u2019t",
]


def ids_golden():
    folder = DATA / "models/tiny-clip"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = []
    for line in (DATA / "fluent/captions.jsonl").read_text("utf-8").splitlines():
        texts += json.loads(line)["captions"]
    classes = json.loads((DATA / "fluent/classes.json").read_text("utf-8"))
    ordered = sorted(classes["classes"], key=lambda entry: entry["id"])
    prompts = [template.replace("{}", entry["label"]) for entry in ordered for template in classes["templates"]]

    def all_ids(texts):
        return b"".join(
            struct.pack("<I", len(ids)) + np.array(ids, "<u4").tobytes()
            for ids in tokenizer(texts, truncation=True, padding=False)["input_ids"])

    return {
        "captions": {"count": len(texts), "blake3": blake3(all_ids(texts)).hexdigest()},
        "prompts": {"count": len(prompts), "blake3": blake3(all_ids(prompts)).hexdigest()},
        "ugly": [{"text": text, "ids": tokenizer(text, truncation=True)["input_ids"]} for text in UGLY],
    }


def write(name, value):
    (HERE / name).write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n", "utf-8")


if __name__ == "__main__":
    make_png_fixtures()
    make_jpeg_fixtures()
    make_webp_fixtures()
    write("decode.json", decode_golden())
    write("crop.json", crop_golden())
    write("synthetic.json", synthetic_golden())
    write("ids.json", ids_golden())
