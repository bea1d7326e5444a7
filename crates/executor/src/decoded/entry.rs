//! One decoded sample as a file: a crop's bytes, or why there is none.

use std::{fs::File, io::Read as _, path::Path, time::SystemTime};

use orchestrator_data::image::RgbImage;
use orchestrator_types::Digest;

use crate::decode::Decoded;

/// Changes with the layout.
const MAGIC: [u8; 7] = *b"decode1";
const CROP: u8 = 1;
const REASON: u8 = 2;
/// Magic and kind, the file's digest, the checksum of all the rest.
const HEADER: usize = 8 + 32 + 32;

pub(super) fn to_bytes(image: &Decoded) -> Vec<u8> {
    let (kind, content) = match &image.crop {
        Ok(crop) => (CROP, crop.pixels()),
        Err(reason) => (REASON, reason.as_bytes()),
    };
    let sum = checksum(kind, image.file.as_bytes(), content);
    let parts = [&MAGIC[..], &[kind], image.file.as_bytes(), sum.as_bytes(), content];
    parts.concat()
}

/// `None` if there is no such file; a reason if it is not what it should be.
pub(super) fn read(path: &Path, size: (u32, u32)) -> Option<Result<Decoded, &'static str>> {
    let mut file = File::open(path).ok()?;
    let image = parse(&mut file, size);
    if image.is_ok() {
        // The time of last use decides who leaves first. Losing it costs little.
        drop(file.set_modified(SystemTime::now()));
    }
    Some(image)
}

fn parse(file: &mut File, (width, height): (u32, u32)) -> Result<Decoded, &'static str> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| "it ends too early")?;
    let (start, rest) = header.split_at(8);
    let (digest, sum) = rest.split_at(32);
    if start[..7] != MAGIC {
        return Err("it has another layout");
    }
    let kind = start[7];
    let mut content = Vec::with_capacity(3 * width as usize * height as usize);
    file.read_to_end(&mut content).map_err(|_| "it cannot be read")?;
    if checksum(kind, digest, &content).as_bytes() != sum {
        return Err("its bytes do not match its checksum");
    }
    let crop = match kind {
        CROP => Ok(RgbImage::new(width, height, content).ok_or("its crop has another size")?),
        REASON => Err(String::from_utf8(content).map_err(|_| "its reason is no text")?),
        _ => return Err("it has another kind"),
    };
    Ok(Decoded { file: Digest::try_from(digest).map_err(|_| "it has no digest")?, crop })
}

fn checksum(kind: u8, digest: &[u8], content: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]).update(digest).update(content);
    hasher.finalize().into()
}
