//! No file, however it lies, makes decoding take more memory than its limit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use orchestrator_data::image::{DecodeLimits, decode};
use orchestrator_types::ByteCount;
use proptest::prelude::*;

/// Counts bytes in use, and the most of them.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator is unsafe by its signature")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tables, windows and lines of decoders, whatever the picture.
const BESIDE: usize = 3 << 20;
const LIMIT: usize = 6 << 20;

fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

fn files() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let names = [
        "c2-d8.png",
        "c6-d16-adam7.png",
        "c0-d1.png",
        "lossy-20.webp",
        "lossless-alpha.webp",
        "lossy-alpha.webp",
        "animated.webp",
    ];
    names.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

/// CRC-32 as PNG uses it (ISO 3309), bit by bit.
fn crc_of(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// The file with another size in its header, as far as the format has room for it.
fn resized(mut bytes: Vec<u8>, (width, height): (u32, u32)) -> Vec<u8> {
    let place = |fourcc: &[u8]| bytes.windows(4).position(|found| found == fourcc);
    if bytes.starts_with(b"\x89PNG") {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let crc = crc_of(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    } else if let Some(at) = place(b"VP8X") {
        bytes[at + 12..at + 15].copy_from_slice(&(width - 1).to_le_bytes()[..3]);
        bytes[at + 15..at + 18].copy_from_slice(&(height - 1).to_le_bytes()[..3]);
    } else if let Some(at) = place(b"VP8L") {
        let packed = ((width - 1) & 0x3fff) | (((height - 1) & 0x3fff) << 14);
        bytes[at + 9..at + 13].copy_from_slice(&packed.to_le_bytes());
    } else if let Some(at) = place(b"VP8 ") {
        bytes[at + 14..at + 16].copy_from_slice(&(width & 0x3fff).to_le_bytes()[..2]);
        bytes[at + 16..at + 18].copy_from_slice(&(height & 0x3fff).to_le_bytes()[..2]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    // The only test of this file: allocations of others would count.
    #[test]
    fn decoding_takes_no_more_than_its_limit(
        file in proptest::sample::select(files()),
        size in (1_u32..=16_384, 1_u32..=16_384),
        small in (1_u32..=1_500, 1_u32..=1_500),
    ) {
        let limits = DecodeLimits { memory: ByteCount::mib(6), ..DecodeLimits::default() };
        for size in [size, small] {
            let bytes = resized(file.clone(), size);
            let mut told = String::new();
            let peak = peak_of(|| match decode(&bytes, &limits) {
                Ok(_) => told.push_str("decoded"),
                Err(error) => told = error.to_string(),
            });
            prop_assert!(peak <= LIMIT + BESIDE, "{size:?}: {peak} bytes: {told}");
        }
    }
}
