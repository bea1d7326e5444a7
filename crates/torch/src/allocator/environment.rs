//! Allocator settings in the environment, which libtorch reads by itself while CUDA support loads.

use std::env;

use orchestrator_types::AllocatorSettings;

use crate::TorchError;

const FIRST: &str = "PYTORCH_CUDA_ALLOC_CONF";
const SECOND: &str = "PYTORCH_ALLOC_CONF";

/// The settings that the environment gives, if any. Fails where libtorch would end the process
/// while CUDA support loads, or would heed one variable here and another there.
pub fn environment() -> Result<Option<AllocatorSettings>, TorchError> {
    settings(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn settings(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<AllocatorSettings>, TorchError> {
    let read = |name: &str| {
        variable(name)
            .map(|text| text.parse::<AllocatorSettings>())
            .transpose()
            .map_err(|error| TorchError(format!("environment variable {name}: {error}")))
    };
    match (read(FIRST)?, read(SECOND)?) {
        (Some(first), Some(second)) if first != second => {
            Err(TorchError(format!("environment variables {FIRST} and {SECOND} differ; unset one")))
        }
        (first, second) => Ok(first.or(second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found with these variables.
    fn with(first: Option<&str>, second: Option<&str>) -> Result<String, String> {
        settings(|name| if name == FIRST { first } else { second }.map(str::to_owned))
            .map(|found| found.map_or("nothing".to_owned(), |settings| settings.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn either_variable_counts_and_a_wrong_or_contradicting_one_is_named() {
        let on = "expandable_segments:True";
        assert_eq!(with(None, None), Ok("nothing".to_owned()));
        assert_eq!(with(Some(on), None), Ok(on.to_owned()));
        assert_eq!(with(None, Some(on)), Ok(on.to_owned()));
        assert_eq!(with(Some(on), Some(" expandable_segments : True")), Ok(on.to_owned()));
        insta::assert_snapshot!(
            with(Some(on), Some("expandable_segments:False")).unwrap_err(),
            @"libtorch: environment variables PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF differ; unset one"
        );
        insta::assert_snapshot!(
            with(None, Some("expandable_segments:on")).unwrap_err(),
            @"libtorch: environment variable PYTORCH_ALLOC_CONF: `expandable_segments` takes True or False, not `on`"
        );
    }
}
