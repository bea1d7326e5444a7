//! One writer at a time: a lock that the kernel drops with the process, however it dies.

use std::{
    fs::{File, TryLockError},
    path::Path,
    time::Duration,
};

use super::StoreError;

const NAME: &str = "lock";
/// [`is_held`] takes the lock for a moment; a start that falls into it tries again.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// Held until dropped.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(state: &Path) -> Result<Self, StoreError> {
        let path = state.join(NAME);
        let failed = |action| {
            let path = path.clone();
            move |source| StoreError::File { action, path, source }
        };
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed("open the lock file"))?;
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
            }
        }
        Err(StoreError::InUse { path: state.to_owned() })
    }
}

/// Whether a coordinator works with the store now.
pub(super) fn is_held(state: &Path) -> bool {
    let Ok(file) = File::open(state.join(NAME)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
