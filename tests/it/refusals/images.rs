//! Hostile pictures: one bad image is one sample set aside, and the others are evaluated.

use std::fs;

use orchestrator_tests::{Home, data};

use super::{IMAGES, Rows, Seen, evaluation, good_image, pipe, run, sparse, tiny_clip};

/// CRC-32 as PNG uses it (ISO 3309), bit by bit.
fn crc_of(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// A PNG that announces this and holds next to nothing.
fn png(width: u32, height: u32, [depth, colour, interlace]: [u8; 3]) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let header = [&size[..], &[depth, colour, 0, 0, interlace]].concat();
    for (kind, content) in
        [(b"IHDR", &header[..]), (b"IDAT", &[0x78, 0x9c, 0x03, 0]), (b"IEND", &[])]
    {
        bytes.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
        let chunk = [&kind[..], content].concat();
        bytes.extend(&chunk);
        bytes.extend(crc_of(&chunk).to_be_bytes());
    }
    bytes
}

/// A sound JPEG whose frame header announces another size.
fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = fs::read(data().join("edge/444.jpg")).unwrap();
    let at = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    bytes[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

/// A lossless WebP that announces this and holds next to nothing.
fn webp(width: u32, height: u32) -> Vec<u8> {
    let packed = (width - 1) | ((height - 1) << 14);
    let chunk = [&[0x2f][..], &packed.to_le_bytes(), &[0; 5]].concat();
    let length = u32::try_from(chunk.len()).unwrap();
    let parts =
        [b"RIFF", &(length + 12).to_le_bytes()[..], b"WEBPVP8L", &length.to_le_bytes(), &chunk];
    parts.concat()
}

pub(super) fn attack(rows: &mut Rows) {
    let home = Home::default();
    good_image(&home);
    let cases: Vec<(&str, &str, &str, Vec<u8>)> = vec![
        ("PNG bomb", "announces 65,535 × 65,535", "bomb.png", png(65_535, 65_535, [8, 2, 0])),
        ("PNG, one side too long", "16,385 × 1", "long.png", png(16_385, 1, [8, 2, 0])),
        ("PNG, too many pixels", "16,384 × 3,907", "pixels.png", png(16_384, 3_907, [8, 2, 0])),
        (
            "PNG, too much to hold",
            "8,000 × 8,000 with 16 bits, interlaced",
            "wide.png",
            png(8_000, 8_000, [16, 6, 1]),
        ),
        ("PNG without data", "announces 5,000 × 5,000", "empty.png", png(5_000, 5_000, [8, 2, 0])),
        ("PNG without width", "0 × 9", "zero.png", png(0, 9, [8, 2, 0])),
        ("JPEG bomb", "announces 65,500 × 65,500", "bomb.jpg", jpeg(65_500, 65_500)),
        ("WebP, too much to hold", "announces 7,000 × 7,000", "wide.webp", webp(7_000, 7_000)),
        ("WebP bomb", "announces 16,383 × 16,383", "bomb.webp", webp(16_383, 16_383)),
        (
            "another format by its bytes",
            "a GIF called .jpg",
            "gif.jpg",
            b"GIF89a\x01\0\x01\0".to_vec(),
        ),
        (
            "markup",
            "an SVG called .png",
            "svg.png",
            b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>".to_vec(),
        ),
        ("no bytes", "an empty file", "none.jpg", Vec::new()),
    ];
    for (_, _, name, content) in &cases {
        home.write(&format!("images/things/{name}"), content);
    }
    sparse(&home.path().join("images/things/large.jpg"), (32 << 20) + 1);
    pipe(&home.path().join("images/things/pipe.jpg"));
    home.write("eval.yaml", evaluation(&tiny_clip(), IMAGES));
    let outcome = run(&home, &["submit", "eval.yaml"]);
    assert!(outcome.stdout.contains(" 1 of 14 evaluated, 13 quarantined"), "{outcome:#?}");
    let folder = home.path().join(outcome.stdout.lines().last().unwrap());
    let report = fs::read_to_string(folder.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let seen = |name: &str| {
        let sample = format!("things/{name}");
        let mut bad = report["quarantined"].as_array().unwrap().iter();
        let bad = bad.find(|bad| bad["sample"] == *sample).unwrap_or_else(|| panic!("{sample}"));
        let answer = "exit 4, one sample set aside".to_owned();
        let said = bad["reason"].as_str().unwrap().to_owned();
        Seen { answer, said, ..Seen::of(&home, &outcome) }.and("the good image is evaluated")
    };
    for (attack, made, name, _) in cases {
        rows.add(attack, made, &seen(name));
    }
    rows.add("large file", "32 MiB and a byte, sparse", &seen("large.jpg"));
    let skipped = Seen::with(&home, &outcome, "skipped what is no picture");
    let skipped = Seen { answer: "no sample".to_owned(), ..skipped };
    rows.add(
        "a pipe called .jpg",
        "`mkfifo`; nobody writes",
        &skipped.and("the good image is evaluated"),
    );
}
