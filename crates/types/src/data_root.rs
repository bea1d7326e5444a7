//! Paths that start at a data root: `NAME:rest/of/path`.
//!
//! A data root is a folder that a worker declares under a name, so that one path means the same
//! data on hosts that mount it at different places. A relative path whose first part holds a colon
//! is written `./a:b`.

use crate::DataRootName;

/// The name of the data root and the path below it, if `path` starts at one. A URL does not.
pub fn below_data_root(path: &str) -> Option<(DataRootName, &str)> {
    let (name, rest) = path.split_once(':')?;
    if rest.starts_with("//") {
        return None;
    }
    Some((name.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_before_a_colon_are_data_roots_and_nothing_else_is() {
        let parts = |path| below_data_root(path).map(|(name, rest)| (name.to_string(), rest));
        assert_eq!(parts("data:clip/tiny"), Some(("data".to_owned(), "clip/tiny")));
        assert_eq!(parts("data:a:b"), Some(("data".to_owned(), "a:b")));
        assert_eq!(parts("data:"), Some(("data".to_owned(), "")));
        for path in ["data/clip", "/data:x/y", "./a:b", "a/b:c", ":x", "s3://bucket/key", ""] {
            assert_eq!(parts(path), None, "{path}");
        }
    }
}
