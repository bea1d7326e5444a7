//! The file of `plan --inventory`: slices as a person writes them, sizes with units.

use std::{collections::BTreeSet, fmt, fs, path::Path};

use anyhow::{Context as _, bail, ensure};
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_types::{ByteCount, DeviceId, NodeName, SliceId};
use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};

const EXAMPLE: &str = "{\"slices\": [{\"id\": \"host.0\", \"device\": \"cpu\", \"threads\": 2, \
                       \"memory\": \"2 GiB\"}]}";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    slices: Vec<Slice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    id: SliceId,
    /// What stands before the last dot of `id` if it is left out.
    node: Option<NodeName>,
    device: DeviceId,
    threads: u32,
    #[serde(deserialize_with = "size")]
    memory: ByteCount,
}

/// A size as text. Plain numbers are refused: nobody sees whether they count bytes or mebibytes.
pub(crate) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<ByteCount, D::Error> {
    struct Size;

    impl Visitor<'_> for Size {
        type Value = ByteCount;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size with its unit, for example \"2 GiB\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<ByteCount, E> {
            text.parse().map_err(E::custom)
        }
    }

    from.deserialize_str(Size)
}

/// Reads an inventory file.
pub(crate) fn read(file: &Path) -> anyhow::Result<Inventory> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("failed to read the inventory {}", file.display()))?;
    parse(&text).with_context(|| {
        format!("{} is not an inventory; it should look like {EXAMPLE}", file.display())
    })
}

fn parse(text: &str) -> anyhow::Result<Inventory> {
    let document: Document = serde_json::from_str(text)?;
    let mut ids = BTreeSet::new();
    let offer = |slice: Slice| {
        let id = slice.id.clone();
        if !ids.insert(slice.id.clone()) {
            bail!("there are two slices `{id}`");
        }
        offer(slice).with_context(|| format!("slice `{id}`"))
    };
    Ok(Inventory { slices: document.slices.into_iter().map(offer).collect::<Result<_, _>>()? })
}

fn offer(
    Slice { id, node, device, threads, memory: memory_bytes }: Slice,
) -> anyhow::Result<SliceOffer> {
    ensure!(threads > 0, "`threads` is 0; a slice has at least one");
    let node = match node {
        Some(node) => node,
        None => id.as_str().rsplit_once('.').map_or(id.as_str(), |(node, _)| node).parse()?,
    };
    Ok(SliceOffer { id, node, device, threads, memory_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(more: &str) -> String {
        format!(r#"{{"slices": [{{"id": "big.host.0", "device": "cpu", "threads": 2, {more}}}]}}"#)
    }

    #[test]
    fn sizes_carry_units_and_the_node_is_in_the_id() {
        let inventory = parse(&slice(r#""memory": "2 GiB""#)).unwrap();
        assert_eq!(inventory.slices[0].memory_bytes, ByteCount::gib(2));
        assert_eq!(inventory.slices[0].node.as_str(), "big.host");
        let inventory = parse(&slice(r#""memory": "500 MB", "node": "other""#)).unwrap();
        assert_eq!(inventory.slices[0].node.as_str(), "other");
        assert_eq!(parse(EXAMPLE).unwrap().slices.len(), 1, "what the message shows is right");
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |text: &str| format!("{:#}", parse(text).unwrap_err());
        let messages = [
                wrong(&slice(r#""memory": 2147483648"#)),
                wrong(&slice(r#""memory": "2""#)),
                wrong(&slice(r#""memory_bytes": 2147483648"#)),
                wrong(&slice(r#""memory": "2 GiB"}, {"id": "big.host.0", "device": "cpu", "threads": 1, "memory": "1 GiB""#)),
                wrong(&slice(r#""memory": "2 GiB""#).replace("\"threads\": 2", "\"threads\": 0")),
            ]
            .join("\n");
        insta::assert_snapshot!(messages);
    }
}
