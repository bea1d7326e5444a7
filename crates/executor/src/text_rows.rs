//! Which distinct texts a set has, in which order, and which of them are computed together.
//!
//! Invariant: a function of the token ids and the tile alone. Distinct texts are ordered by padded
//! length, then by ids; a tile holds texts of one padded length, and is full unless it is the last
//! of its length; a part is a run of tiles. So each text is always computed in the same company's
//! shape, whoever computes it.

use std::ops::Range;

use orchestrator_data::tokenizer::Tokens;
use orchestrator_proto::domain::{DatasetSource, EncodeTexts, ModelSource, TextSet};
use orchestrator_types::{ByteCount, Digest};

/// Texts are padded to a multiple of this many tokens, or to the model's context.
const LENGTH_STEP: usize = 8;

/// What a [`TextRows`] is made from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TextRowsKey {
    model: ModelSource,
    dataset: DatasetSource,
    texts: TextSet,
    tile: u32,
}

impl TextRowsKey {
    /// The same for all parts of a set.
    pub(crate) fn new(work: &EncodeTexts) -> Self {
        let (model, dataset) = (work.model.clone(), work.dataset.clone());
        Self { model, dataset, texts: work.texts, tile: work.tile }
    }
}

/// The texts of a set as rows of a matrix of embeddings.
#[derive(Debug)]
pub(crate) struct TextRows {
    /// Whose ids these are.
    pub(crate) tokenizer: Digest,
    /// Texts that were cut to the context.
    pub(crate) truncated: u64,
    /// For each text of the set, its row.
    pub(crate) row_of: Vec<u32>,
    /// Token ids of each row; the last one ends the text.
    distinct: Vec<Vec<u32>>,
    tiles: Vec<TextTile>,
}

/// Rows that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextTile {
    pub(crate) rows: Range<usize>,
    /// Tokens of each text, padding included.
    pub(crate) length: usize,
}

impl TextRows {
    /// `texts` has fewer than 2³² entries, each with at least one id; `tile` is not zero.
    pub(crate) fn new(texts: Vec<Tokens>, context: usize, tile: usize, tokenizer: Digest) -> Self {
        let length = |ids: &[u32]| ids.len().next_multiple_of(LENGTH_STEP).min(context);
        let truncated = texts.iter().filter(|text| text.truncated).count() as u64;
        let mut order: Vec<(usize, Vec<u32>)> =
            texts.into_iter().map(|text| text.ids).enumerate().collect();
        order.sort_by(|(_, a), (_, b)| (length(a), a).cmp(&(length(b), b)));
        let mut row_of = vec![0; order.len()];
        let mut distinct: Vec<Vec<u32>> = Vec::new();
        for (text, ids) in order {
            if distinct.last() != Some(&ids) {
                distinct.push(ids);
            }
            let row = distinct.len() - 1;
            row_of[text] = u32::try_from(row).expect("there are not more rows than texts");
        }
        let tiles = tiles(&distinct, length, tile);
        Self { tokenizer, truncated, row_of, distinct, tiles }
    }

    /// Number of distinct texts.
    pub(crate) const fn unique(&self) -> usize {
        self.distinct.len()
    }

    /// What it occupies on the host.
    pub(crate) fn bytes(&self) -> ByteCount {
        let ids: usize = self.distinct.iter().map(|ids| 24 + 4 * ids.len()).sum();
        let tiles = self.tiles.len() * size_of::<TextTile>();
        ByteCount::bytes((ids + 4 * self.row_of.len() + tiles) as u64)
    }

    /// Every row.
    pub(crate) fn all(&self) -> Range<u32> {
        0..u32::try_from(self.unique()).expect("there are not more rows than texts")
    }

    /// The tiles that start at `rows`; see [`EncodeTexts::starts`].
    pub(crate) fn part(&self, rows: Range<u32>) -> &[TextTile] {
        let index = |row: u32| self.tiles.partition_point(|tile| tile.rows.start < row as usize);
        &self.tiles[index(rows.start)..index(rows.end)]
    }

    /// The rows of those tiles.
    pub(crate) fn rows(&self, tiles: &[TextTile]) -> Range<usize> {
        match (tiles.first(), tiles.last()) {
            (Some(first), Some(last)) => first.rows.start..last.rows.end,
            _ => self.unique()..self.unique(),
        }
    }

    /// Token ids of a row, without padding.
    pub(crate) fn ids(&self, row: usize) -> &[u32] {
        &self.distinct[row]
    }

    /// A tile's ids as the text tower takes them: each text padded with its own last id.
    pub(crate) fn padded(&self, tile: &TextTile, out: &mut Vec<i64>) {
        out.clear();
        for row in tile.rows.clone() {
            let ids = self.ids(row);
            let padding = ids.last().into_iter().cycle();
            out.extend(ids.iter().chain(padding).take(tile.length).copied().map(i64::from));
        }
    }
}

fn tiles(distinct: &[Vec<u32>], length: impl Fn(&[u32]) -> usize, tile: usize) -> Vec<TextTile> {
    let mut tiles: Vec<TextTile> = Vec::new();
    for (row, ids) in distinct.iter().enumerate() {
        let length = length(ids);
        match tiles.last_mut() {
            Some(last) if last.length == length && last.rows.len() < tile => last.rows.end += 1,
            _ => tiles.push(TextTile { rows: row..row + 1, length }),
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use orchestrator_proto::domain::SourceKind;
    use orchestrator_types::Precision;

    use super::*;

    fn work() -> EncodeTexts {
        EncodeTexts {
            model: ModelSource {
                folder: "/m".into(),
                weights: Digest::of(b""),
                precision: Precision::Fp32,
            },
            dataset: DatasetSource {
                name: "d".parse().unwrap(),
                source: SourceKind::Captions { file: "/d.jsonl".into() },
                manifest: Digest::of(b""),
            },
            texts: TextSet::AllCaptions,
            part: 0,
            parts: 1,
            batch: 4,
            tile: 4,
        }
    }

    fn rows(texts: &[&[u32]], tile: usize) -> TextRows {
        let tokens = |ids: &&[u32]| Tokens { ids: ids.to_vec(), truncated: ids.len() == 20 };
        TextRows::new(texts.iter().map(tokens).collect(), 20, tile, Digest::of(b""))
    }

    #[test]
    fn equal_texts_share_a_row_and_short_ones_come_first() {
        let long = [7; 20];
        let rows = rows(&[&long, &[1, 5, 9], &[1, 4, 4, 9], &[1, 5, 9], &long[..9]], 2);
        assert_eq!(rows.row_of, [3, 1, 0, 1, 2]);
        assert_eq!(rows.unique(), 4);
        assert_eq!(rows.truncated, 1);
        assert_eq!(rows.ids(1), [1, 5, 9]);
        let lengths: Vec<usize> = rows.part(rows.all()).iter().map(|tile| tile.length).collect();
        assert_eq!(lengths, [8, 16, 20], "the longest stops at the context");
        let mut ids = Vec::new();
        rows.padded(&rows.part(rows.all())[0], &mut ids);
        assert_eq!(ids, [1, 4, 4, 9, 9, 9, 9, 9, 1, 5, 9, 9, 9, 9, 9, 9]);
    }

    #[test]
    fn parts_cover_each_row_once_and_cut_no_tile() {
        let texts: Vec<Vec<u32>> = (0..103_u32).map(|n| vec![n; 1 + (n as usize % 20)]).collect();
        let rows = rows(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>(), 4);
        let work = work();
        for parts in [1, 2, 3, 7, 200] {
            let starts = |part| EncodeTexts { part, parts, ..work.clone() }.starts(rows.all().end);
            let ranges = (0..parts).map(|part| rows.rows(rows.part(starts(part))));
            let most = EncodeTexts::most_rows(103, parts, 4) as usize;
            assert!(ranges.clone().all(|range| range.len() <= most), "{parts} parts");
            let covered: Vec<usize> = ranges.flatten().collect();
            assert_eq!(covered, (0..rows.unique()).collect::<Vec<_>>(), "{parts} parts");
            let tiles: Vec<TextTile> =
                (0..parts).flat_map(|part| rows.part(starts(part)).to_vec()).collect();
            assert_eq!(tiles, rows.part(rows.all()), "{parts} parts");
        }
        assert!(rows.part(rows.all()).iter().all(|tile| (1..=4).contains(&tile.rows.len())));
    }

    #[test]
    fn an_empty_set_has_no_tiles() {
        let rows = rows(&[], 4);
        assert!(rows.part(rows.all()).is_empty());
        assert_eq!(rows.rows(rows.part(rows.all())), 0..0);
    }
}
