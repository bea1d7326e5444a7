//! The settings of libtorch's caching allocator, as `PYTORCH_ALLOC_CONF` spells them.
//!
//! libtorch reads them late, and not at all where there is no GPU, so that a misspelt one would be
//! accepted there and ignored. Invariant: what passes here, libtorch 2.11 accepts, and nothing in it
//! works against the quota.

use crate::{
    shape::join,
    wording::{nearest, shown},
};

/// What is wrong with one setting, or with two together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// What a setting's value looks like.
enum Kind {
    Truth,
    /// A whole number, at least this.
    Whole(u64),
    /// More than 0, less than 1.
    Share,
    /// 0 or a power of two, or a list of them by size.
    Divisions,
    /// The one backend that reports what it does.
    Backend,
    /// Refused, with the reason.
    Refused(&'static str),
}

use Kind::{Backend, Divisions, Refused, Share, Truth, Whole};

const SETTINGS: &[(&str, Kind)] = &[
    ("expandable_segments", Truth),
    ("max_split_size_mb", Whole(21)),
    ("garbage_collection_threshold", Share),
    ("roundup_power2_divisions", Divisions),
    ("large_segment_size_mb", Whole(20)),
    ("max_non_split_rounding_mb", Whole(21)),
    ("backend", Backend),
    ("pinned_use_background_threads", Truth),
    ("pinned_num_register_threads", Whole(1)),
    ("pinned_use_cuda_host_register", Truth),
    ("pinned_reserve_segment_size_mb", Whole(0)),
    ("release_lock_on_cudamalloc", Truth),
    ("graph_capture_record_stream_reuse", Truth),
    ("per_process_memory_fraction", Refused("the quota sets it; use `memory.quota`")),
];

/// Largest whole number that a setting takes: more megabytes than any device has.
const WHOLE_LIMIT: u64 = 99_999_999;

/// Everything that is wrong with `text`.
pub(crate) fn mistakes(text: &str) -> Vec<Mistake> {
    let mut found = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for entry in entries(text) {
        let Some((key, value)) = entry.split_once(':') else {
            let message = format!("`{}` is not a setting", shown(entry));
            found.push(mistake(message, Some("write `KEY:VALUE,KEY:VALUE`")));
            continue;
        };
        match SETTINGS.iter().find(|(name, _)| *name == key) {
            None => found.push(unknown(key)),
            Some(_) if seen.iter().any(|(earlier, _)| *earlier == key) => {
                let message = format!("`{key}` stands here twice");
                found.push(mistake(message, Some("keep one of them")));
            }
            Some((_, kind)) => found.extend(kind.mistake(key, value)),
        }
        seen.push((key, value));
    }
    let has = |key: &str| seen.iter().any(|(earlier, _)| *earlier == key);
    if seen.contains(&("expandable_segments", "True")) && has("max_split_size_mb") {
        let message = "`expandable_segments:True` and `max_split_size_mb` contradict each other";
        found.push(mistake(message.to_owned(), Some("keep one of them")));
    }
    found
}

/// What the schema can say of a right text: keys and the shapes of values, not ranges.
pub(crate) fn pattern() -> String {
    let settings = SETTINGS.iter().filter_map(|(key, kind)| Some((key, kind.pattern()?)));
    let one: Vec<String> = settings.map(|(key, value)| format!("{key}:{value}")).collect();
    let one = format!("({})", one.join("|"));
    format!("^ *{one} *(, *{one} *)*$")
}

fn mistake(message: String, hint: Option<&str>) -> Mistake {
    Mistake { message, hint: hint.map(str::to_owned) }
}

fn unknown(key: &str) -> Mistake {
    let offered = SETTINGS.iter().filter(|(_, kind)| !matches!(kind, Refused(_)));
    let names: Vec<&str> = offered.map(|(name, _)| *name).collect();
    let hint = match nearest(key, &names) {
        Some(guess) => format!("did you mean `{guess}`?"),
        None => format!("settings are {}", join(&names, "and")),
    };
    let message = format!("the allocator has no setting `{}`", shown(key));
    Mistake { message, hint: Some(hint) }
}

/// The settings, cut at commas that stand outside brackets.
fn entries(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let cut = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(cut).map(|entry| entry.trim_matches(' ')).collect()
}

impl Kind {
    fn mistake(&self, key: &str, value: &str) -> Option<Mistake> {
        if let Refused(reason) = self {
            return Some(mistake(format!("`{key}` cannot be set here"), Some(reason)));
        }
        if matches!(self, Backend) && value == "cudaMallocAsync" {
            let message = "the backend `cudaMallocAsync` does not report its memory".to_owned();
            return Some(mistake(message, Some("leave it out, or use native")));
        }
        if self.accepts(value) {
            return None;
        }
        let expected = self.expected();
        let message = format!("`{key}` takes {expected}, not `{}`", shown(value));
        let same = |right: &&&str| right.eq_ignore_ascii_case(value);
        let hint = matches!(self, Truth).then(|| ["True", "False"].iter().find(same)).flatten();
        Some(mistake(message, hint.map(|right| format!("did you mean `{right}`?")).as_deref()))
    }

    fn accepts(&self, value: &str) -> bool {
        match self {
            Truth => matches!(value, "True" | "False"),
            Whole(least) => whole(value).is_some_and(|number| number >= *least),
            Share => {
                let decimal = value.chars().all(|c| c.is_ascii_digit() || c == '.');
                let share = value.parse::<f64>().ok().filter(|_| decimal);
                share.is_some_and(|share| share > 0.0 && share < 1.0)
            }
            Divisions => divisions(value),
            Backend => value == "native",
            Refused(_) => false,
        }
    }

    fn expected(&self) -> String {
        match self {
            Truth => "True or False".to_owned(),
            Whole(0) => format!("a whole number up to {WHOLE_LIMIT}"),
            Whole(least) => format!("a whole number from {least} to {WHOLE_LIMIT}"),
            Share => "a share between 0 and 1, both excluded".to_owned(),
            Divisions => {
                "0, a power of two, or a list such as `[256:1,512:2,>:8]` of powers of two"
                    .to_owned()
            }
            Backend => "native".to_owned(),
            Refused(_) => "nothing".to_owned(),
        }
    }

    fn pattern(&self) -> Option<&'static str> {
        match self {
            Truth => Some("(True|False)"),
            Whole(_) => Some("[0-9]+"),
            Share => Some("[0-9]*\\.?[0-9]*"),
            Divisions => Some("([0-9]+|\\[([0-9]+:[0-9]+,)*([0-9]+|>):[0-9]+\\])"),
            Backend => Some("native"),
            Refused(_) => None,
        }
    }
}

fn whole(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number <= WHOLE_LIMIT)
}

/// `8`, or `[256:1,512:2,>:8]`: by size in MiB, and `>` for all above at the end.
fn divisions(text: &str) -> bool {
    let power = |text: &str| whole(text).is_some_and(u64::is_power_of_two);
    let division = |text: &str| text == "0" || power(text);
    let Some(list) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return division(text);
    };
    let end = list.split(',').count() - 1;
    list.split(',').enumerate().all(|(index, entry)| {
        let right = |(size, divisions): (&str, &str)| {
            (power(size) || size == ">" && index == end) && division(divisions)
        };
        entry.split_once(':').is_some_and(right)
    })
}
