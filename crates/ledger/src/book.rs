//! The book of one slice: its quota, and the leases that share it.
//!
//! Invariants: what is held is the sum of all living leases; whenever a lease is granted or grows,
//! what is held is at most the quota; after the last lease is dropped, nothing is held.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use orchestrator_types::ByteCount;

use crate::{Holder, Owner, Refusal};

/// Longest time between two looks at whether to give up waiting.
const PATIENCE: Duration = Duration::from_millis(20);

/// The book of one slice. A clone shares it.
#[derive(Clone)]
pub struct Ledger {
    shared: Arc<Shared>,
}

/// Bytes promised to an owner until this is dropped.
#[must_use = "a lease returns its bytes when it is dropped"]
pub struct Lease {
    shared: Arc<Shared>,
    owner: Owner,
    bytes: u64,
}

struct Shared {
    book: Mutex<Book>,
    returned: Condvar,
}

#[derive(Default)]
struct Book {
    quota: u64,
    held: u64,
    peak: u64,
    /// Owners that hold something.
    owners: BTreeMap<Owner, u64>,
}

impl Ledger {
    /// An empty book with `quota` to share.
    pub fn new(quota: ByteCount) -> Self {
        let book = Book { quota: quota.as_u64(), ..Book::default() };
        Self { shared: Arc::new(Shared { book: Mutex::new(book), returned: Condvar::new() }) }
    }

    /// All that may be held at once.
    pub fn quota(&self) -> ByteCount {
        ByteCount::bytes(self.shared.book().quota)
    }

    /// Changes the quota. Below what is held, living leases stay, and new ones are refused until
    /// enough came back.
    pub fn set_quota(&self, quota: ByteCount) {
        self.shared.book().quota = quota.as_u64();
        self.shared.returned.notify_all();
    }

    /// Promises `bytes` to `owner`, or says why not.
    pub fn lease(&self, owner: Owner, bytes: ByteCount) -> Result<Lease, Refusal> {
        self.shared.book().take(&owner, 0, bytes.as_u64())?;
        Ok(Lease { shared: Arc::clone(&self.shared), owner, bytes: bytes.as_u64() })
    }

    /// As [`lease`](Self::lease), but waits while it does not fit now and `give_up` says no. Asks
    /// `give_up` about every 20 ms and whenever bytes come back.
    ///
    /// Whoever waits should hold nothing that others wait for; there is no order among those who
    /// wait. When it gives up, the refusal tells the book at that moment.
    pub fn lease_when_free(
        &self,
        owner: Owner,
        bytes: ByteCount,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Lease, Refusal> {
        let mut book = self.shared.book();
        loop {
            match book.take(&owner, 0, bytes.as_u64()) {
                Ok(()) => break,
                Err(refusal @ Refusal::NeverFits { .. }) => return Err(refusal),
                Err(refusal) => {
                    // Asked without the lock, so that `give_up` may read the book.
                    drop(book);
                    if give_up() {
                        return Err(refusal);
                    }
                    book = self.shared.wait(bytes.as_u64());
                }
            }
        }
        drop(book);
        Ok(Lease { shared: Arc::clone(&self.shared), owner, bytes: bytes.as_u64() })
    }

    /// Sum of all leases.
    pub fn held(&self) -> ByteCount {
        ByteCount::bytes(self.shared.book().held)
    }

    /// Sum of the leases whose owner passes `filter`.
    pub fn held_by(&self, filter: impl Fn(&Owner) -> bool) -> ByteCount {
        let book = self.shared.book();
        let matching = book.owners.iter().filter(|(owner, _)| filter(owner));
        ByteCount::bytes(matching.map(|(_, bytes)| bytes).sum())
    }

    /// What the quota leaves; zero while more is held than the quota allows.
    pub fn free(&self) -> ByteCount {
        ByteCount::bytes(self.shared.book().free())
    }

    /// Who holds what, largest first.
    pub fn holders(&self) -> Vec<Holder> {
        self.shared.book().holders()
    }

    /// Most that was ever held at once.
    pub fn peak(&self) -> ByteCount {
        ByteCount::bytes(self.shared.book().peak)
    }
}

impl Lease {
    /// What it holds.
    pub const fn bytes(&self) -> ByteCount {
        ByteCount::bytes(self.bytes)
    }

    /// Who holds it.
    pub const fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Returns what it holds beyond `bytes`; one that holds less stays as it is.
    pub fn shrink_to(&mut self, bytes: ByteCount) {
        let surplus = self.bytes.saturating_sub(bytes.as_u64());
        self.bytes -= surplus;
        self.shared.give_back(&self.owner, surplus);
    }

    /// Takes what it lacks to hold `bytes`, all or nothing; one that holds more stays as it is.
    pub fn grow_to(&mut self, bytes: ByteCount) -> Result<(), Refusal> {
        let lack = bytes.as_u64().saturating_sub(self.bytes);
        if lack > 0 {
            self.shared.book().take(&self.owner, self.bytes, lack)?;
            self.bytes += lack;
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.give_back(&self.owner, self.bytes);
    }
}

impl Shared {
    /// The book, also after a panic elsewhere: no change of it can be left half done.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The book once `bytes` may have become free, or after [`PATIENCE`].
    fn wait(&self, bytes: u64) -> MutexGuard<'_, Book> {
        let waits = |book: &mut Book| bytes <= book.room() && !book.fits(bytes);
        let waited = self.returned.wait_timeout_while(self.book(), PATIENCE, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn give_back(&self, owner: &Owner, bytes: u64) {
        if bytes > 0 {
            self.book().put(owner, bytes);
            self.returned.notify_all();
        }
    }
}

impl Book {
    const fn free(&self) -> u64 {
        self.quota.saturating_sub(self.held)
    }

    /// What whoever never returns anything holds.
    fn kept(&self) -> u64 {
        self.owners.iter().filter(|(owner, _)| owner.never_returns()).map(|(_, bytes)| bytes).sum()
    }

    /// The most that anybody else could ever hold.
    fn room(&self) -> u64 {
        self.quota.saturating_sub(self.kept())
    }

    const fn fits(&self, more: u64) -> bool {
        more <= self.quota && self.held <= self.quota - more
    }

    /// Takes `more` for a lease that already holds `has`.
    fn take(&mut self, owner: &Owner, has: u64, more: u64) -> Result<(), Refusal> {
        let whole = has.saturating_add(more);
        // What the lease itself has is no reason against it.
        let kept = self.kept() - if owner.never_returns() { has } else { 0 };
        let room = self.quota.saturating_sub(kept);
        if whole > room {
            return Err(Refusal::NeverFits {
                owner: owner.clone(),
                asked: ByteCount::bytes(whole),
                quota: ByteCount::bytes(self.quota),
                kept: ByteCount::bytes(kept),
                missing: ByteCount::bytes(whole - room),
            });
        }
        if !self.fits(more) {
            return Err(Refusal::NotNow {
                owner: owner.clone(),
                asked: ByteCount::bytes(more),
                free: ByteCount::bytes(self.free()),
                missing: ByteCount::bytes(self.held - (self.quota - more)),
                holders: self.holders(),
            });
        }
        self.held += more;
        self.peak = self.peak.max(self.held);
        if more > 0 {
            *self.owners.entry(owner.clone()).or_default() += more;
        }
        Ok(())
    }

    fn put(&mut self, owner: &Owner, bytes: u64) {
        self.held -= bytes;
        if let Some(rest) = self.owners.get_mut(owner) {
            *rest -= bytes;
            if *rest == 0 {
                self.owners.remove(owner);
            }
        }
    }

    fn holders(&self) -> Vec<Holder> {
        let holder = |(owner, bytes): (&Owner, &u64)| Holder {
            owner: owner.clone(),
            bytes: ByteCount::bytes(*bytes),
        };
        let mut holders: Vec<Holder> = self.owners.iter().map(holder).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = self.shared.book();
        f.debug_struct("Ledger")
            .field("quota", &ByteCount::bytes(book.quota))
            .field("holders", &book.holders())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({}, {})", self.owner, self.bytes())
    }
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
