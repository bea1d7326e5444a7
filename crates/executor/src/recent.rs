//! A few values by key; the one not used for longest goes first.

/// At most `limit` values.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    limit: usize,
    /// Last used last.
    entries: Vec<(K, V)>,
}

impl<K: PartialEq, V> Recent<K, V> {
    /// `limit` is at least one.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, entries: Vec::new() }
    }

    /// The value of this key, made by `make` if it is not there.
    pub(crate) fn get_or_make<E>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        let known = self.entries.iter().position(|(known, _)| *known == key);
        let entry = if let Some(at) = known {
            self.entries.remove(at)
        } else {
            // Out first: what is made next may need the room.
            if self.entries.len() == self.limit {
                self.entries.remove(0);
            }
            (key, make()?)
        };
        self.entries.push(entry);
        Ok(&mut self.entries.last_mut().expect("pushed a line above").1)
    }

    /// Counts as use of the value of this key, if it is there.
    pub(crate) fn touch(&mut self, key: &K) {
        if let Some(at) = self.entries.iter().position(|(known, _)| known == key) {
            let entry = self.entries.remove(at);
            self.entries.push(entry);
        }
    }

    /// The value of this key, if it is there. Does not count as use.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Lets the value go that was not used for longest, unless only the `keep` newest are left;
    /// whether there was one.
    pub(crate) fn pop(&mut self, keep: usize) -> bool {
        let any = self.entries.len() > keep;
        if any {
            self.entries.remove(0);
        }
        any
    }

    /// Keys and values, the one not used for longest first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_not_used_for_longest_goes() {
        let mut recent = Recent::new(2);
        let mut made = Vec::new();
        for key in [1, 2, 1, 3, 1, 2] {
            let value = recent.get_or_make(key, || {
                made.push(key);
                Ok::<_, ()>(key * 10)
            });
            assert_eq!(value, Ok(&mut (key * 10)));
        }
        assert_eq!(made, [1, 2, 3, 2]);
        assert_eq!(recent.values().copied().collect::<Vec<_>>(), [10, 20]);
        assert_eq!(recent.get_or_make(1, || Err("not asked")), Ok(&mut 10));
    }
}
