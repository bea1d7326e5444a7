//! The first look at a YAML text: where everything stands, and refusal of what makes YAML large,
//! deep or ambiguous, before serde_yaml builds a value of it.
//!
//! Why a second parser: serde_yaml expands aliases before anyone can look (60 kB become 200 MB) and
//! tells places only of what fails. This one reads the events in a single pass and keeps nothing
//! but positions, so time and memory grow with the text's length.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Marker, Parser, ScanError};

use crate::key_path::{KeyPath, Step};

/// Line and column, from 1.
pub(crate) type Position = (u32, u32);

/// Where a value stands. An entry of a list has no key: both positions are the entry's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) key: Position,
    pub(crate) value: Position,
    children: Children,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Children {
    #[default]
    None,
    List(Vec<Node>),
    Map(BTreeMap<String, Node>),
}

/// Something that is refused before any key is looked at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) at: Position,
    pub(crate) key: String,
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

const BYTES_LIMIT: usize = 256 << 10;
const DEPTH_LIMIT: usize = 32;
const KEY_LIMIT: usize = 128;

impl Node {
    /// The node at `path`, or the last one on the way there.
    pub(crate) fn nearest(&self, path: &KeyPath) -> (&Self, bool) {
        let mut node = self;
        for step in &path.0 {
            let child = match (step, &node.children) {
                (Step::Index(index), Children::List(items)) => items.get(*index),
                (Step::Key(key), Children::Map(entries)) => entries.get(key),
                _ => None,
            };
            let Some(child) = child else { return (node, false) };
            node = child;
        }
        (node, true)
    }
}

/// Where everything in `text` stands, or all that is refused.
pub(crate) fn outline(text: &str) -> Result<Node, Vec<Refusal>> {
    if let Some(refusal) = refuse_bytes(text) {
        return Err(vec![refusal]);
    }
    let start = Node { key: (1, 1), value: (1, 1), children: Children::None };
    let mut outliner = Outliner { root: start, ..Outliner::default() };
    for event in Parser::new_from_str(text) {
        let step = match event {
            Ok((event, span)) => outliner.event(event, position(&span.start)),
            Err(error) => Err(not_yaml(text, &error)),
        };
        if let Err(refusal) = step {
            outliner.refusals.push(refusal);
            break;
        }
    }
    if outliner.refusals.is_empty() { Ok(outliner.root) } else { Err(outliner.refusals) }
}

fn position(marker: &Marker) -> Position {
    let from = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (from(marker.line()), from(marker.col() + 1))
}

/// Line separators other than newline are refused too: YAML 1.1 and 1.2 disagree about them, and
/// so would the two parsers.
fn refuse_bytes(text: &str) -> Option<Refusal> {
    let refusal = |at, message, hint| Some(Refusal { at, key: String::new(), message, hint });
    if text.len() > BYTES_LIMIT {
        let size = text.len().div_ceil(1 << 10);
        let hint = Some("is it an eval.yaml at all?");
        return refusal((1, 1), format!("the file has {size} KiB; at most 256 are read"), hint);
    }
    let odd = |c: char| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
    };
    let index = text.find(odd)?;
    let (before, at) = text.split_at(index);
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.chars().rev().take_while(|&c| c != '\n').count();
    let code = u32::from(at.chars().next()?);
    let from = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    refusal(
        (from(line), from(column)),
        format!("the invisible character U+{code:04X} is not allowed"),
        Some("delete it"),
    )
}

fn not_yaml(text: &str, error: &ScanError) -> Refusal {
    let at = position(error.marker());
    let line = text.lines().nth(error.marker().line().saturating_sub(1)).unwrap_or_default();
    let indentation = &line[..line.len() - line.trim_start().len()];
    let hint = if indentation.contains('\t') {
        Some("indent with spaces, not tabs")
    } else if line.matches(": ").count() > 1 {
        Some("put text that contains `: ` in quotes")
    } else if error.info().contains("quoted scalar") {
        Some("is a closing quote missing?")
    } else if error.info().contains("unknown anchor") {
        Some(WRITE_OUT)
    } else {
        None
    };
    Refusal { at, key: String::new(), message: format!("not valid YAML: {}", error.info()), hint }
}

/// A list or mapping that has begun and not ended.
struct Open {
    node: Node,
    /// In a mapping: the key whose value comes next.
    pending: Option<(String, Position)>,
}

#[derive(Default)]
struct Outliner {
    open: Vec<Open>,
    root: Node,
    documents: u32,
    refusals: Vec<Refusal>,
}

impl Outliner {
    fn event(&mut self, event: Event<'_>, at: Position) -> Result<(), Refusal> {
        match event {
            Event::DocumentStart(_) => self.document(at),
            Event::Alias(_) => Err(self.refusal(at, "aliases (`*name`) are not read", WRITE_OUT)),
            Event::Scalar(text, _, anchor, tag) => {
                self.adorned(at, anchor > 0, tag.is_some());
                self.scalar(&text, at)
            }
            Event::SequenceStart(anchor, tag) => {
                self.adorned(at, anchor > 0, tag.is_some());
                self.begin(at, Children::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.adorned(at, anchor > 0, tag.is_some());
                self.begin(at, Children::Map(BTreeMap::new()))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.place(open.node);
                }
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn document(&mut self, at: Position) -> Result<(), Refusal> {
        self.documents += 1;
        if self.documents == 1 {
            return Ok(());
        }
        Err(self.refusal(at, "a second document begins here", "one file, one evaluation"))
    }

    fn adorned(&mut self, at: Position, anchor: bool, tag: bool) {
        if anchor {
            let refusal = self.refusal(at, "anchors (`&name`) are not read", WRITE_OUT);
            self.refusals.push(refusal);
        }
        if tag {
            let refusal = self.refusal(at, "tags (`!name`) are not read", "remove it");
            self.refusals.push(refusal);
        }
    }

    fn begin(&mut self, at: Position, children: Children) -> Result<(), Refusal> {
        if self.open.len() == DEPTH_LIMIT {
            return Err(Refusal {
                at,
                key: String::new(),
                message: format!("lists and mappings are nested more than {DEPTH_LIMIT} deep"),
                hint: Some("an evaluation needs 5"),
            });
        }
        if self.expects_key() {
            return Err(self.refusal(at, "a list or mapping stands where a key is expected", KEYS));
        }
        let key = self.key_position(at);
        self.open.push(Open { node: Node { key, value: at, children }, pending: None });
        Ok(())
    }

    fn scalar(&mut self, text: &str, at: Position) -> Result<(), Refusal> {
        if !self.expects_key() {
            let key = self.key_position(at);
            self.place(Node { key, value: at, children: Children::None });
            return Ok(());
        }
        if text == "<<" {
            return Err(self.refusal(at, "merge keys (`<<`) are not read", WRITE_OUT));
        }
        if text.chars().count() > KEY_LIMIT {
            return Err(self.refusal(at, "a key has more than 128 characters", KEYS));
        }
        if let Some(open) = self.open.last_mut() {
            open.pending = Some((text.to_owned(), at));
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        self.open.last().is_some_and(|open| {
            open.pending.is_none() && matches!(open.node.children, Children::Map(_))
        })
    }

    fn key_position(&self, value: Position) -> Position {
        self.open.last().and_then(|open| open.pending.as_ref()).map_or(value, |(_, at)| *at)
    }

    /// Gives a finished node to whatever holds it. Of a repeated key the first one stays.
    fn place(&mut self, node: Node) {
        if let Some(line) = self.line_of_same_key() {
            let message = format!("this key already stands on line {line}");
            let refusal = self.refusal(node.key, &message, "keep one of them");
            self.refusals.push(refusal);
        }
        let Some(open) = self.open.last_mut() else {
            self.root = node;
            return;
        };
        match (&mut open.node.children, open.pending.take()) {
            (Children::List(items), _) => items.push(node),
            (Children::Map(entries), Some((key, _))) => {
                entries.entry(key).or_insert(node);
            }
            (Children::Map(_) | Children::None, _) => {}
        }
    }

    fn line_of_same_key(&self) -> Option<u32> {
        let open = self.open.last()?;
        let Children::Map(entries) = &open.node.children else { return None };
        let (key, _) = open.pending.as_ref()?;
        entries.get(key).map(|first| first.key.0)
    }

    fn path(&self) -> KeyPath {
        let step = |open: &Open| match (&open.node.children, &open.pending) {
            (Children::List(items), _) => Some(Step::Index(items.len())),
            (_, pending) => pending.clone().map(|(key, _)| Step::Key(key)),
        };
        KeyPath(self.open.iter().filter_map(step).collect())
    }

    fn refusal(&self, at: Position, message: &str, hint: &'static str) -> Refusal {
        Refusal { at, key: self.path().to_string(), message: message.to_owned(), hint: Some(hint) }
    }
}

const WRITE_OUT: &str = "write the value out where it is used";
const KEYS: &str = "keys are short plain words";
