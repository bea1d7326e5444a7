//! Limits that a GPU-sharing service sets in the environment: MPS and HAMi.
//!
//! Both are read as the process that computes sees them: devices are counted after
//! `CUDA_VISIBLE_DEVICES`, so an executor with one device reads the limit of number 0.

use orchestrator_types::{ByteCount, DeviceId};
use serde::Serialize;

const MPS: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const HAMI: &str = "CUDA_DEVICE_MEMORY_LIMIT";

/// What the environment lets a process have of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EnvironmentLimits {
    /// MPS's limit, for each process of its own.
    pub mps: Option<ByteCount>,
    /// HAMi's limit, for all processes of a container together.
    pub hami: Option<ByteCount>,
}

/// A limit that cannot be read. It might be meant to hold, so nothing is computed without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is `{value}`: `{part}` is no limit; write {expected}, or unset it")]
pub struct LimitError {
    /// The variable.
    pub variable: String,
    /// All of its text.
    pub value: String,
    /// The part that cannot be read.
    pub part: String,
    /// What would be right.
    pub expected: &'static str,
}

/// The limits for device number `ordinal` of this process, whose UUID is `device`. `variable` looks
/// up a variable of the environment.
pub fn environment_limits(
    variable: &dyn Fn(&str) -> Option<String>,
    ordinal: u32,
    device: &DeviceId,
) -> Result<EnvironmentLimits, LimitError> {
    // Set to nothing is not set.
    let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let mps = variable(MPS).map(|value| mps(&value, ordinal, device)).transpose()?.flatten();
    // The device's own limit wins; zero means none.
    let own = format!("{HAMI}_{ordinal}");
    let hami = [own.as_str(), HAMI]
        .into_iter()
        .find_map(|name| variable(name).and_then(|value| hami(name, &value).transpose()));
    Ok(EnvironmentLimits { mps, hami: hami.transpose()? })
}

/// `0=4G,GPU-…=512M`: positions or UUIDs.
fn mps(value: &str, ordinal: u32, device: &DeviceId) -> Result<Option<ByteCount>, LimitError> {
    let device = device.to_string();
    let mut found = None;
    for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let error = || LimitError {
            variable: MPS.to_owned(),
            value: value.to_owned(),
            part: part.to_owned(),
            expected: "for example `0=4G,1=512M`",
        };
        let (name, limit) = part.split_once('=').ok_or_else(error)?;
        // Without a unit MPS's own reading is not documented.
        let limit = size(limit.trim()).filter(|_| limit.ends_with(char::is_alphabetic));
        let limit = limit.ok_or_else(error)?;
        let name = name.trim();
        let ours = match name.parse::<u32>() {
            Ok(position) => position == ordinal,
            Err(_) if name.starts_with("GPU-") || name.starts_with("MIG-") => {
                device.starts_with(name)
            }
            Err(_) => return Err(error()),
        };
        if ours {
            found = Some(limit);
        }
    }
    Ok(found)
}

/// `4096m`: a number with k, m or g; without a unit, bytes; zero is no limit.
fn hami(variable: &str, value: &str) -> Result<Option<ByteCount>, LimitError> {
    let limit = size(value.trim()).ok_or_else(|| LimitError {
        variable: variable.to_owned(),
        value: value.to_owned(),
        part: value.to_owned(),
        expected: "for example `4096m`",
    })?;
    Ok(Some(limit).filter(|limit| *limit > ByteCount::ZERO))
}

/// Digits with a binary unit: `k`, `m`, `g` in either case, with `B` or without.
fn size(text: &str) -> Option<ByteCount> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = match unit.trim().to_ascii_lowercase().trim_end_matches('b') {
        "" => ByteCount::bytes(1),
        "k" => ByteCount::kib(1),
        "m" => ByteCount::mib(1),
        "g" => ByteCount::gib(1),
        _ => return None,
    };
    unit.checked_mul(digits.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn limits(variables: &[(&str, &str)], ordinal: u32) -> Result<EnvironmentLimits, LimitError> {
        let look_up = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        environment_limits(&look_up, ordinal, &"GPU-aa11".parse().unwrap())
    }

    #[test]
    fn without_a_service_there_is_no_limit() {
        assert_eq!(limits(&[], 0), Ok(EnvironmentLimits::default()));
        assert_eq!(limits(&[(MPS, ""), (HAMI, " ")], 0), Ok(EnvironmentLimits::default()));
    }

    #[test]
    fn mps_limits_are_read_by_position_and_by_uuid() {
        let read = |value, ordinal| limits(&[(MPS, value)], ordinal).unwrap().mps;
        assert_eq!(read("0=4G,1=512M", 0), Some(ByteCount::gib(4)));
        assert_eq!(read("0=4G,1=512M", 1), Some(ByteCount::mib(512)));
        assert_eq!(read("0=4G,1=512M", 2), None);
        assert_eq!(read("0=5GB", 0), Some(ByteCount::gib(5)));
        assert_eq!(read("GPU-aa11=1024k", 5), Some(ByteCount::mib(1)));
        assert_eq!(read("GPU-bb22=1024k", 0), None);
    }

    #[test]
    fn hami_limits_are_read_with_the_devices_own_first() {
        let read = |variables: &[_], ordinal| limits(variables, ordinal).unwrap().hami;
        let both = [(HAMI, "2g"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "4096m")];
        assert_eq!(read(&both, 0), Some(ByteCount::gib(4)));
        assert_eq!(read(&both, 1), Some(ByteCount::gib(2)));
        assert_eq!(read(&[(HAMI, "1048576")], 0), Some(ByteCount::mib(1)));
        assert_eq!(read(&[(HAMI, "0")], 0), None);
        let unlimited_itself = [(HAMI, "2g"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "0")];
        assert_eq!(read(&unlimited_itself, 0), Some(ByteCount::gib(2)));
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_refused() {
        let refused = |name, value| limits(&[(name, value)], 0).unwrap_err().to_string();
        assert_snapshot!(refused(MPS, "0=4G,1=lots"), @"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is `0=4G,1=lots`: `1=lots` is no limit; write for example `0=4G,1=512M`, or unset it");
        assert_snapshot!(refused(HAMI, "4096 pages"), @"CUDA_DEVICE_MEMORY_LIMIT is `4096 pages`: `4096 pages` is no limit; write for example `4096m`, or unset it");
        for value in ["4G", "0=4", "first=4G", "0=-4G", "0=99999999999999G", "0="] {
            assert!(limits(&[(MPS, value)], 0).is_err(), "{value}");
        }
        for value in ["m", "4.5g", "99999999999999g"] {
            assert!(limits(&[(HAMI, value)], 0).is_err(), "{value}");
        }
    }
}
