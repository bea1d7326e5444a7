//! Finding the executor's program: where the user says, or beside our own.

use std::{
    fmt, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// File name of the executor's program.
pub const EXECUTOR_NAME: &str = "orchestrator-executor";

/// There is no executor where one should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}; run `cargo xtask install`, or set ORCHESTRATOR_EXECUTOR to the program's path",
    Tried(named.as_deref(), beside.as_deref())
)]
pub struct FindError {
    named: Option<PathBuf>,
    beside: Option<PathBuf>,
}

struct Tried<'a>(Option<&'a Path>, Option<&'a Path>);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(named), _) => {
                write!(f, "ORCHESTRATOR_EXECUTOR names {}, which is not a program", named.display())
            }
            (None, Some(beside)) => write!(
                f,
                "no {EXECUTOR_NAME}: ORCHESTRATOR_EXECUTOR is not set, and {} is not a program",
                beside.display()
            ),
            (None, None) => write!(
                f,
                "no {EXECUTOR_NAME}: ORCHESTRATOR_EXECUTOR is not set, and this program's own \
                 place is unknown"
            ),
        }
    }
}

/// The executor's program: `named`, the value of `ORCHESTRATOR_EXECUTOR`, or else the one beside
/// the running program. A wrong `named` is an error: another executor than the wanted one would
/// give surprising results.
///
/// # Errors
/// [`FindError`] with the places tried and what to do.
pub fn find_executor(named: Option<PathBuf>) -> Result<PathBuf, FindError> {
    find(named, std::env::current_exe())
}

fn find(named: Option<PathBuf>, own: io::Result<PathBuf>) -> Result<PathBuf, FindError> {
    let beside = own.ok().map(|own| own.with_file_name(EXECUTOR_NAME));
    let wanted = named.as_ref().or(beside.as_ref());
    match wanted.filter(|path| is_program(path)) {
        Some(path) => Ok(path.clone()),
        None => Err(FindError { named, beside }),
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_program_wins_and_a_wrong_name_is_not_passed_over() {
        let program = std::env::current_exe().unwrap();
        let nowhere = PathBuf::from("/nowhere/executor");
        assert_eq!(find(Some(program.clone()), Ok(nowhere.clone())), Ok(program.clone()));
        let error = find(Some(nowhere), Ok(program)).unwrap_err();
        insta::assert_snapshot!(error, @"ORCHESTRATOR_EXECUTOR names /nowhere/executor, which is not a program; run `cargo xtask install`, or set ORCHESTRATOR_EXECUTOR to the program's path");
    }

    #[test]
    fn both_places_are_named_when_neither_has_it() {
        let error = find(None, Ok("/opt/bin/orchestrator".into())).unwrap_err();
        insta::assert_snapshot!(error, @"no orchestrator-executor: ORCHESTRATOR_EXECUTOR is not set, and /opt/bin/orchestrator-executor is not a program; run `cargo xtask install`, or set ORCHESTRATOR_EXECUTOR to the program's path");
    }

    #[test]
    fn a_folder_or_a_plain_file_is_no_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(EXECUTOR_NAME);
        std::fs::write(&file, "").unwrap();
        assert!(!is_program(folder.path()) && !is_program(&file));
    }
}
