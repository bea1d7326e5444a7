use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use proptest::prelude::*;

use super::*;

/// Files where Pillow and this crate differ on purpose; the reason beside each.
const STRICTER: [&str; 1] = [
    // The picture is damaged and the file has lost its end: Pillow happens to have all rows before
    // it notices. Whether rows are there by luck is not for us to judge.
    "BAD-cut-damaged.jpg",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden() -> BTreeMap<String, String> {
    let text = fs::read(root().join("tests/golden/decode.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn file(name: &str) -> Vec<u8> {
    let places = ["../../tests/data/edge", "tests/fixtures"];
    let mut found = places.iter().filter_map(|place| fs::read(root().join(place).join(name)).ok());
    found.next().unwrap_or_else(|| panic!("{name} is neither an edge case nor a fixture"))
}

fn described(image: &RgbImage) -> String {
    let digest = blake3::hash(image.pixels()).to_hex();
    format!("{} {} {}", image.width(), image.height(), &digest[..32])
}

#[test]
fn every_sound_file_has_pillows_pixels() {
    let mut wrong = Vec::new();
    for (name, expected) in golden().iter().filter(|(name, _)| !name.starts_with("BAD")) {
        let found = match decode(&file(name), &DecodeLimits::default()) {
            Ok(image) => described(&image),
            Err(error) => error.to_string(),
        };
        if found != *expected {
            wrong.push(format!("{name}: {found} instead of {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_bad_file_is_refused_with_its_reason() {
    let mut reasons = String::new();
    for (name, expected) in golden().iter().filter(|(name, _)| name.starts_with("BAD")) {
        let error = decode(&file(name), &DecodeLimits::default()).expect_err(name);
        assert!(expected.starts_with("refused") || STRICTER.contains(&name.as_str()), "{name}");
        writeln!(reasons, "{name}: {error}").unwrap();
    }
    insta::assert_snapshot!(reasons);
}

#[test]
fn limits_are_checked_before_pixels_are_allocated() {
    let small = DecodeLimits { side: 100, ..DecodeLimits::default() };
    let few = DecodeLimits { pixels: 50_000, ..DecodeLimits::default() };
    let tight = DecodeLimits { memory: ByteCount::kib(140), ..DecodeLimits::default() };
    let short = DecodeLimits { bytes: ByteCount::kib(2), ..DecodeLimits::default() };
    let mut reasons = String::new();
    for name in ["444.jpg", "rgba.png", "lossy.webp"] {
        for limits in [&small, &few, &tight, &short] {
            let error = decode(&file(name), limits).expect_err(name);
            writeln!(reasons, "{name}: {error}").unwrap();
        }
    }
    // A header that announces 4 gigapixels, in 33 bytes.
    let mut huge = file("BAD-header-only.png");
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    let crc = crc_of(&huge[12..29]);
    huge[29..33].copy_from_slice(&crc.to_be_bytes());
    writeln!(reasons, "huge.png: {}", decode(&huge, &DecodeLimits::default()).unwrap_err())
        .unwrap();
    insta::assert_snapshot!(reasons);
}

/// Coefficients of a progressive file are held all at once, beside the pixels.
#[test]
fn a_progressive_jpeg_is_held_to_the_same_memory() {
    let (name, bytes) = ("progressive-420.jpg", file("progressive-420.jpg"));
    let image = decode(&bytes, &DecodeLimits::default()).unwrap();
    let pixels = image.pixels().len() as u64;
    let tight = DecodeLimits { memory: ByteCount::bytes(pixels - 1), ..DecodeLimits::default() };
    assert!(matches!(decode(&bytes, &tight), Err(DecodeError::TooMuchMemory { .. })), "{name}");
}

/// CRC-32 as PNG uses it (ISO 3309), bit by bit.
fn crc_of(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn a_name_says_nothing_about_the_format() {
    let image = decode(&file("gray.png"), &DecodeLimits::default()).unwrap();
    assert_eq!((image.width(), image.height()), (224, 224));
    let error = decode(b"GIF89a\x01\x00\x01\x00", &DecodeLimits::default()).unwrap_err();
    insta::assert_snapshot!(error, @r#"not a JPEG, PNG or WebP file: it starts with "GIF89a\x01\x00\x01\x00""#);
}

/// Small sound files of each kind, to be damaged.
fn seeds() -> Vec<Vec<u8>> {
    let names = [
        "odd-420.jpg",
        "progressive-420.jpg",
        "cmyk-odd.jpg",
        "restarts.jpg",
        "c2-d8.png",
        "c3-d4.png",
        "c6-d16-adam7.png",
        "lossy-20.webp",
        "lossless-alpha.webp",
        "lossy-alpha.webp",
        "animated.webp",
    ];
    names.iter().map(|name| file(name)).collect()
}

fn tight() -> DecodeLimits {
    DecodeLimits { side: 2048, pixels: 1 << 20, ..DecodeLimits::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_damage_panics(
        seed in proptest::sample::select(seeds()),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut bytes = seed;
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(image) = decode(&bytes, &tight()) {
            prop_assert_eq!(image.pixels().len(), (image.width() * image.height() * 3) as usize);
        }
    }

    #[test]
    fn no_noise_panics(
        start in proptest::sample::select(vec![
            &b""[..], b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x40\x00\x00\x00WEBPVP8 ",
            b"RIFF\x40\x00\x00\x00WEBPVP8L", b"RIFF\x40\x00\x00\x00WEBPVP8X",
        ]),
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        drop(decode(&[start, &rest].concat(), &tight()));
    }

    #[test]
    fn a_cut_jpeg_is_never_taken_for_whole(cut in 1_usize..1000) {
        let whole = file("odd-420.jpg");
        let cut = whole.len() - cut % whole.len();
        if cut < whole.len() {
            prop_assert!(decode(&whole[..cut], &tight()).is_err());
        }
    }
}
