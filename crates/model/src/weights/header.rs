//! The header of a safetensors file: eight bytes of length, then JSON.
//!
//! Invariant: whatever stands in it, at most [`MOST_HEADER`] bytes are held, and every claim is
//! checked before anything is made of it. The `safetensors` crate checks that ranges follow each other
//! without a gap and are as long as shape and element type say; that the last one ends where the file
//! does, that no name stands twice, that no tensor is empty, and the limits are ours.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use orchestrator_types::wording::one_line;
use safetensors::tensor::Metadata;
use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, Visitor},
};

use super::Listed;
use crate::HeaderProblem;

pub(super) const LENGTH_BYTES: usize = 8;
const MOST_HEADER: u64 = 8 << 20;
const MOST_TENSORS: usize = 20_000;

/// The length that a file of `bytes` claims for its header, if that can be.
pub(super) fn length(claimed: u64, bytes: u64) -> Result<usize, HeaderProblem> {
    if bytes <= LENGTH_BYTES as u64 {
        return Err(HeaderProblem::TooShort { bytes });
    }
    if claimed > MOST_HEADER {
        return Err(HeaderProblem::TooLarge { claimed, limit: MOST_HEADER });
    }
    if claimed > bytes - LENGTH_BYTES as u64 {
        return Err(HeaderProblem::Truncated { claimed, bytes });
    }
    Ok(usize::try_from(claimed).unwrap_or(usize::MAX))
}

/// The tensors that the header's text lists, in a file of `bytes`.
pub(super) fn list(text: &[u8], bytes: u64) -> Result<BTreeMap<String, Listed>, HeaderProblem> {
    let text = std::str::from_utf8(text)
        .map_err(|error| HeaderProblem::Damaged(format!("invalid UTF-8 in header: {error}")))?;
    let damaged = |error: serde_json::Error| HeaderProblem::Damaged(one_line(&error.to_string()));
    let Names { seen, twice } = serde_json::from_str(text).map_err(damaged)?;
    if let Some(name) = twice {
        return Err(HeaderProblem::NamedTwice { name: one_line(&name) });
    }
    let found = seen.iter().filter(|name| *name != "__metadata__").count();
    if found > MOST_TENSORS {
        return Err(HeaderProblem::TooManyTensors { found, limit: MOST_TENSORS });
    }
    let metadata: Metadata = serde_json::from_str(text).map_err(damaged)?;
    let data = LENGTH_BYTES + text.len();
    if (data as u64).checked_add(metadata.data_len() as u64) != Some(bytes) {
        return Err(HeaderProblem::Size);
    }
    let mut listed = BTreeMap::new();
    // In order, so that of several mistakes the same one is told each time.
    let tensors: BTreeMap<_, _> = metadata.tensors().into_iter().collect();
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        if start == end {
            return Err(HeaderProblem::NoElements { name: one_line(&name) });
        }
        let range = start + data..end + data;
        listed.insert(name, Listed { dtype: info.dtype, shape: info.shape.clone(), range });
    }
    Ok(listed)
}

/// The keys of an object, and the first that stands there twice.
struct Names {
    seen: HashSet<String>,
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut names = Names { seen: HashSet::new(), twice: None };
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if names.seen.contains(&name) {
                names.twice.get_or_insert(name);
            } else {
                names.seen.insert(name);
            }
        }
        Ok(names)
    }
}
