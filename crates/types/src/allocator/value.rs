//! What a setting's value may be.
//!
//! Invariant: a value that passes here passes in libtorch, which would not say a word about a
//! wrong one on machines without CUDA support.

/// The kinds of values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Truth,
    /// A whole number of MiB, of this or more.
    Mebibytes(u64),
    /// Between 0 and 1, both excluded.
    Share,
    /// A power of two up to this.
    PowerOfTwo(u64),
    /// One power of two, or a list as `[256:1,512:2,>:8]`.
    Divisions,
    /// The one backend that reports what it does.
    Backend,
    /// Nothing, for a reason.
    Refused(&'static str),
}

/// Largest whole number that is read: more MiB than any device has.
const MOST: u64 = 99_999_999;

impl Form {
    /// The value as it is kept and written; `None` if it is not one.
    pub(super) fn read(self, value: &str) -> Option<String> {
        match self {
            Self::Truth => matches!(value, "True" | "False").then(|| value.to_owned()),
            Self::Mebibytes(least) => whole(value).filter(|n| *n >= least).map(|n| n.to_string()),
            Self::Share => share(value),
            Self::PowerOfTwo(most) => {
                whole(value).filter(|n| n.is_power_of_two() && *n <= most).map(|n| n.to_string())
            }
            Self::Divisions => divisions(value),
            Self::Backend => (value == "native").then(|| value.to_owned()),
            Self::Refused(_) => None,
        }
    }

    /// A value for messages that would do.
    pub(super) const fn example(self) -> &'static str {
        match self {
            Self::Truth => "True",
            Self::Mebibytes(_) => "64",
            Self::Share => "0.8",
            Self::PowerOfTwo(_) | Self::Divisions => "8",
            Self::Backend => "native",
            Self::Refused(_) => "",
        }
    }

    /// The value that `value` was probably meant to be.
    pub(super) fn nearest(self, value: &str) -> Option<&'static str> {
        let truth = matches!(self, Self::Truth);
        ["True", "False"].into_iter().find(|right| truth && right.eq_ignore_ascii_case(value))
    }

    pub(super) fn expected(self) -> String {
        match self {
            Self::Truth => "True or False".to_owned(),
            Self::Mebibytes(least) => format!("a whole number of MiB from {least} to {MOST}"),
            Self::Share => "a share between 0 and 1, both excluded".to_owned(),
            Self::PowerOfTwo(most) => format!("a power of two from 1 to {most}"),
            Self::Divisions => {
                "a power of two, or a list such as [256:1,512:2,>:8] of powers of two".to_owned()
            }
            Self::Backend => "native".to_owned(),
            Self::Refused(_) => "nothing".to_owned(),
        }
    }

    /// What every value of the kind matches.
    pub(super) const fn pattern(self) -> Option<&'static str> {
        match self {
            Self::Truth => Some("(True|False)"),
            Self::Mebibytes(_) | Self::PowerOfTwo(_) => Some("[0-9]+"),
            Self::Share => Some("[0-9]*\\.?[0-9]*"),
            Self::Divisions => {
                Some("([0-9]+|\\[ *([0-9]+ *: *[0-9]+ *, *)*([0-9]+|>) *: *[0-9]+ *\\])")
            }
            Self::Backend => Some("native"),
            Self::Refused(_) => None,
        }
    }
}

/// Digits alone: libtorch would also read what follows a sign or precedes a letter.
fn whole(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number <= MOST)
}

fn share(text: &str) -> Option<String> {
    let decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share: f64 = text.parse().ok().filter(|_| decimal)?;
    (share > 0.0 && share < 1.0).then(|| share.to_string())
}

/// `8`, or `[256:1,512:2,>:8]`: by size in MiB, and `>` for all above at the end.
fn divisions(text: &str) -> Option<String> {
    let power = |text: &str| whole(text).filter(|number| number.is_power_of_two());
    let Some(list) = text.strip_prefix('[') else {
        return power(text).map(|number| number.to_string());
    };
    let entries: Vec<_> = list.strip_suffix(']')?.split(',').collect();
    let read = entries.iter().enumerate().map(|(at, entry)| {
        let (size, parts) = entry.split_once(':')?;
        let (size, parts) = (size.trim_matches(' '), parts.trim_matches(' '));
        let above = size == ">" && at + 1 == entries.len();
        let size = if above { size.to_owned() } else { power(size)?.to_string() };
        let parts = if parts == "0" { 0 } else { power(parts)? };
        Some(format!("{size}:{parts}"))
    });
    Some(format!("[{}]", read.collect::<Option<Vec<_>>>()?.join(",")))
}
