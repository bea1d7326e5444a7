//! What a value in eval.yaml may look like, as data: the walk over a file and the JSON schema both
//! read these shapes, so that they cannot drift apart.

/// A value's shape.
pub(crate) enum Shape {
    /// The one version of the format that is understood.
    Version,
    /// One line of text.
    Text,
    /// A path on this machine; the rows of [`NOT_BUILT`] about `endings` are refused.
    ///
    /// [`NOT_BUILT`]: crate::grammar::NOT_BUILT
    Path { endings: Option<Topic> },
    /// The name of a dataset that the file declares.
    DatasetName,
    /// A whole number from 1 to [`COUNT_LIMIT`].
    Count,
    /// An amount of memory with its unit, more than nothing.
    Bytes,
    /// Settings of the allocator.
    Allocator,
    /// One of some words, or perhaps a [`Shape::Count`].
    Word { topic: Topic, words: &'static [&'static str], or_count: bool },
    /// One to [`LIST_LIMIT`] values, none twice.
    List(&'static Shape),
    /// A mapping with known keys.
    Record(&'static [Field]),
    /// A mapping from names of datasets, at least one.
    Datasets(&'static Shape),
    /// A mapping whose key `format` says which other keys there are.
    Format(&'static [Variant]),
    /// A mapping with exactly one key, which says what its value is.
    Task(&'static [Variant]),
}

/// One key of a mapping.
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) need: Need,
    pub(crate) shape: Shape,
    /// One sentence for people.
    pub(crate) about: &'static str,
    /// A value, as YAML.
    pub(crate) example: &'static str,
}

/// What the absence of a key means.
pub(crate) enum Need {
    /// A mistake.
    Required,
    /// That there is no such thing.
    Optional,
    /// This value, as YAML.
    Default(&'static str),
}

/// One form of a mapping.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) fields: &'static [Field],
}

/// Which question a word answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topic {
    Key,
    Precision,
    Format,
    Scheme,
    CaptionsFile,
    Batch,
    Captions,
    OnBadSample,
    OnOom,
    Split,
}

/// Largest number that any key takes.
pub(crate) const COUNT_LIMIT: u64 = 1_000_000;
/// Most entries in a list.
pub(crate) const LIST_LIMIT: usize = 1_000;
/// Longest text or path, in characters.
pub(crate) const TEXT_LIMIT: usize = 4_096;
/// The version of the format.
pub(crate) const VERSION: u64 = 1;

impl Shape {
    /// What stands here, for "expected …".
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Version => format!("the number {VERSION}"),
            Self::Text => "text".to_owned(),
            Self::Path { .. } => "a path".to_owned(),
            Self::DatasetName => "the name of a dataset".to_owned(),
            Self::Count => format!("a whole number from 1 to {COUNT_LIMIT}"),
            Self::Bytes => "an amount of memory with a unit".to_owned(),
            Self::Allocator => "settings of the allocator".to_owned(),
            Self::Word { words, or_count: false, .. } => either(words),
            Self::Word { words, or_count: true, .. } => {
                format!("{} or {}", either(words), Self::Count.expected())
            }
            Self::List(_) => "a list".to_owned(),
            Self::Record(fields) => format!("a mapping with {}", keys(fields)),
            Self::Datasets(_) => "a mapping from names to datasets".to_owned(),
            Self::Format(_) => "a mapping with `format`".to_owned(),
            Self::Task(variants) => {
                let names: Vec<_> = variants.iter().map(|variant| variant.name).collect();
                format!("a task: {}", either(&names))
            }
        }
    }

    /// Whether the value is written on one line without brackets.
    pub(crate) const fn is_scalar(&self) -> bool {
        !matches!(
            self,
            Self::List(_) | Self::Record(_) | Self::Datasets(_) | Self::Format(_) | Self::Task(_)
        )
    }
}

/// "`a`, `b` and `c`".
pub(crate) fn keys(fields: &[Field]) -> String {
    let quoted: Vec<_> = fields.iter().map(|field| format!("`{}`", field.key)).collect();
    join(&quoted, "and")
}

/// "a, b or c".
pub(crate) fn either(words: &[&str]) -> String {
    join(words, "or")
}

/// The words with commas, and `last` before the last one.
pub(crate) fn join<T: AsRef<str>>(words: &[T], last: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}
