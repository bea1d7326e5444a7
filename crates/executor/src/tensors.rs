//! Tensor files: written by us, byte for byte the same each time; read with every claim checked.
//!
//! The format is safetensors. Its own library keeps metadata in a hash map, whose order differs
//! from run to run, and a blob's name is the digest of its bytes; so the header is written here.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors, tensor::Metadata};
use serde_json::{Map, Value, json};

/// A tensor file in the making.
#[derive(Debug, Default)]
pub(crate) struct TensorWriter {
    metadata: BTreeMap<String, String>,
    tensors: Map<String, Value>,
    data: Vec<u8>,
}

impl TensorWriter {
    pub(crate) fn note(&mut self, key: &str, value: impl Into<String>) {
        self.metadata.insert(key.to_owned(), value.into());
    }

    /// Adds a tensor. Wider element types must come first, so that each is aligned.
    pub(crate) fn add_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        self.add(name, "F32", shape, values.len(), values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// Adds a tensor of one axis.
    pub(crate) fn add_u32(&mut self, name: &str, values: &[u32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        self.add(name, "U32", &[values.len()], values.len(), bytes);
    }

    /// Adds a tensor of one axis.
    pub(crate) fn add_u8(&mut self, name: &str, values: &[u8]) {
        self.add(name, "U8", &[values.len()], values.len(), values.iter().copied());
    }

    fn add(
        &mut self,
        name: &str,
        dtype: &str,
        shape: &[usize],
        length: usize,
        bytes: impl Iterator<Item = u8>,
    ) {
        assert_eq!(shape.iter().product::<usize>(), length, "the shape fits the numbers");
        let start = self.data.len();
        self.data.extend(bytes);
        let offsets = [start, self.data.len()];
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
        self.tensors.insert(name.to_owned(), entry);
    }

    /// The file's bytes: length of the header, header, data.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!(self.metadata));
        header.extend(self.tensors);
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = Vec::with_capacity(8 + header.len() + self.data.len());
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header);
        bytes.extend(self.data);
        bytes
    }
}

/// A tensor file that was read.
pub(crate) struct TensorReader<'a> {
    header: Metadata,
    data: &'a [u8],
}

impl<'a> TensorReader<'a> {
    /// Checks the header, and that every tensor lies inside the file.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let (length, header) = SafeTensors::read_metadata(bytes)
            .map_err(|error| format!("not a tensor file: {error}"))?;
        let data = bytes.get(8 + length..).unwrap_or_default();
        Ok(Self { header, data })
    }

    pub(crate) fn noted(&self, key: &str) -> Result<&str, String> {
        let notes = self.header.metadata().as_ref();
        let value = notes.and_then(|notes| notes.get(key));
        value.map(String::as_str).ok_or_else(|| format!("no `{key}` noted"))
    }

    /// A number in the metadata.
    pub(crate) fn noted_number(&self, key: &str) -> Result<usize, String> {
        let text = self.noted(key)?;
        text.parse().map_err(|_| format!("`{key}` is `{text}`, not a number"))
    }

    /// A matrix: number of rows, numbers in a row, the numbers.
    pub(crate) fn matrix(&self, name: &str) -> Result<(usize, usize, Vec<f32>), String> {
        let (shape, data) = self.tensor(name, Dtype::F32)?;
        let &[rows, width] = shape else {
            return Err(format!("`{name}` has {} axes, not 2", shape.len()));
        };
        let (numbers, _) = data.as_chunks::<4>();
        Ok((rows, width, numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }

    pub(crate) fn list_u32(&self, name: &str) -> Result<Vec<u32>, String> {
        let (numbers, _) = self.tensor(name, Dtype::U32)?.1.as_chunks::<4>();
        Ok(numbers.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }

    pub(crate) fn list_u8(&self, name: &str) -> Result<&'a [u8], String> {
        Ok(self.tensor(name, Dtype::U8)?.1)
    }

    fn tensor(&self, name: &str, dtype: Dtype) -> Result<(&[usize], &'a [u8]), String> {
        let info = self.header.info(name).ok_or_else(|| format!("no tensor `{name}`"))?;
        if info.dtype != dtype {
            return Err(format!("`{name}` has {:?}, not {dtype:?}", info.dtype));
        }
        let (start, end) = info.data_offsets;
        let data = self.data.get(start..end).ok_or_else(|| format!("`{name}` is cut off"))?;
        Ok((&info.shape, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut writer = TensorWriter::default();
        for key in ["first", "unique", "samples", "key"] {
            writer.note(key, "7");
        }
        writer.add_f32("embeddings", &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        writer.add_u32("row_of", &[1, 0, 1]);
        writer.add_u8("valid", &[1, 0]);
        writer.finish()
    }

    #[test]
    fn what_was_written_is_read_and_the_bytes_never_differ() {
        let bytes = file();
        assert_eq!(bytes, file());
        let reader = TensorReader::open(&bytes).unwrap();
        assert_eq!(reader.noted_number("first"), Ok(7));
        assert_eq!(reader.matrix("embeddings"), Ok((2, 2, vec![1.0, 2.0, 3.0, 4.0])));
        assert_eq!(reader.list_u32("row_of"), Ok(vec![1, 0, 1]));
        assert_eq!(reader.list_u8("valid"), Ok(&[1, 0][..]));
    }

    #[test]
    fn what_is_missing_or_damaged_is_named() {
        let bytes = file();
        let reader = TensorReader::open(&bytes).unwrap();
        assert_eq!(reader.noted("last").unwrap_err(), "no `last` noted");
        assert_eq!(reader.list_u8("x").unwrap_err(), "no tensor `x`");
        assert_eq!(reader.list_u8("row_of").unwrap_err(), "`row_of` has U32, not U8");
        assert!(TensorReader::open(&bytes[..bytes.len() - 1]).is_err());
        assert!(TensorReader::open(b"").is_err());
    }
}
