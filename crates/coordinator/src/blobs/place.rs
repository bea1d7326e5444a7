//! [`BlobPlace`]: where a coordinator keeps its blobs.

use std::{path::PathBuf, str::FromStr};

use reqwest::Url;

/// Where a coordinator keeps its blobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BlobPlace {
    /// In its state folder.
    #[default]
    State,
    /// In another folder of this machine, below a name of its own.
    Folder(PathBuf),
    /// In a bucket, below a name of its own. Credentials come from the environment.
    Bucket(Url),
}

/// An address that says no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{address}` is no place for blobs: {problem}; give s3://bucket/prefix, gs://bucket/prefix, \
     az://container/prefix or file:///folder"
)]
pub struct ParsePlaceError {
    address: String,
    problem: String,
}

impl FromStr for BlobPlace {
    type Err = ParsePlaceError;

    fn from_str(address: &str) -> Result<Self, ParsePlaceError> {
        let wrong = |problem: &str| ParsePlaceError {
            address: address.to_owned(),
            problem: problem.to_owned(),
        };
        let url = Url::parse(address).map_err(|error| wrong(&error.to_string()))?;
        if !url.username().is_empty() && url.password().is_some() {
            return Err(wrong("credentials belong into the environment, where no list shows them"));
        }
        match url.scheme() {
            "file" => url
                .to_file_path()
                .map(Self::Folder)
                .map_err(|()| wrong("it names another host, or no absolute folder")),
            "s3" | "s3a" | "gs" | "az" | "azure" | "adl" | "abfs" | "abfss"
                if url.host_str().is_some_and(|host| !host.is_empty()) =>
            {
                Ok(Self::Bucket(url))
            }
            "s3" | "s3a" | "gs" | "az" | "azure" | "adl" | "abfs" | "abfss" => {
                Err(wrong("it names no bucket"))
            }
            other => Err(wrong(&format!("`{other}` is no kind of store"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_others_refused_with_the_reason() {
        let folder: BlobPlace = "file:///mnt/blobs".parse().unwrap();
        assert_eq!(folder, BlobPlace::Folder("/mnt/blobs".into()));
        for address in ["s3://b/p", "gs://b", "az://c/p/q", "abfss://c@account.host/p"] {
            let place: BlobPlace = address.parse().unwrap();
            assert_eq!(place, BlobPlace::Bucket(Url::parse(address).unwrap()));
        }
        let problem = |address: &str| address.parse::<BlobPlace>().unwrap_err().to_string();
        assert_eq!(
            problem("/mnt/blobs"),
            "`/mnt/blobs` is no place for blobs: relative URL without a base; give \
             s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
        );
        assert!(problem("ftp://host/x").contains("`ftp` is no kind of store"));
        assert!(problem("s3:///x").contains("it names no bucket"));
        assert!(problem("file://host/x").contains("it names another host"));
        assert!(problem("s3://key:secret@b/p").contains("belong into the environment"));
    }
}
